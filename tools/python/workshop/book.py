# SPDX-License-Identifier: Apache-2.0
"""`./workshop book`: the pages of the workshop as a site that works from a folder, without a network.

Sphinx with MyST (myst-parser) reads Markdown as GitHub does (CommonMark): lists, tables and folded answers look the
same, which other generators' dialects do not achieve. The theme is furo: search, dark mode, small screens. Pages stay
as they are; links to source files lead to pages with numbered lines. A quiz and, where looking beats reading, an
interactive figure are pages that only the site has."""

from __future__ import annotations

import glob
import html
import os
import posixpath
import re
import shutil
import subprocess
import sys

from . import machine, predict
from .chapters import Chapter, all_chapters, marked, read
from .context import Context, Words
from .errors import Failed, Refused

PACKAGES = ["sphinx>=7,<10", "myst-parser>=3,<6", "furo>=2024.8", "sphinx-revealjs>=3,<4"]  # the last one for slides
PARTS = [  # caption, pages
    ("Chapters", ["[0-9]*/README"]),
    ("Golf", ["golf/README"]),
    ("More", ["docs/*", "slurm/README", "AGENTS", "CONTRIBUTING"]),
    ("How it works", ["common/README", "model/README", "backend_cpu/*", "checker/README", "tools/README", "tests/README"]),
]
FIGURES_FOLDER = "tools/book"
SCRIPTS, STYLES = ["models.js", "figures.js", "lines.js"], ["figures.css"]
FIGURES = {  # interactive pages: title, figure of figures.js, what it shows, and questions with their answers
    "00_collectives/try_ring.md": (
        "Try it: the ring, step by step",
        "ring",
        "A cell says whose values are in a chunk of a rank: 0+2 is the sum of those of ranks 0 and 2. What has just "
        "arrived is blue, what is complete is green.",
        [
            (
                "Before each step: which chunk does rank 2 send, and what does it hold afterwards?",
                "In the reduce-scatter it sends the chunk that it has just added to, in the all-gather the one that has "
                "just arrived.",
            ),
            (
                "How much has each rank sent in the end, with 2, 4 and 8 ranks?",
                "2(P-1) chunks of 1/P of the values: 1, 1.5 and 1.75 times all of them. It never gets to twice.",
            ),
        ],
    ),
    "04_pipeline/try_schedules.md": (
        "Try it: schedules",
        "pipeline",
        "Each row is a stage, each column a slot. Forwards are blue, backwards green, and the gradients of the weights "
        "orange, if they are computed by themselves. Each of them takes one slot here, and messages take no time.",
        [
            (
                "With how many micro-batches does `gpipe` idle less than 10 % of the time on 4 stages?",
                "With 28: (p-1)/(M+p-1) is 3/31.",
            ),
            (
                "`1f1b` idles as long as `gpipe`. What is it for?",
                "Memory: stage s holds at most p-s micro-batches, however many there are.",
            ),
            (
                "What does `interleaved` pay for a smaller bubble?",
                "Messages: a micro-batch passes each stage twice. It also holds more: with 4 stages and 8 micro-batches, "
                "stage 0 holds 11 forwards of half its layers, where `1f1b` holds 4 of all its layers.",
            ),
            (
                "And `zb-h1`?",
                "Memory: all stages hold as many micro-batches as the first stage of `1f1b` does. The fullest stage, for "
                "which the GPUs must be large enough, holds no more than before.",
            ),
        ],
    ),
    "06_fsdp/try_memory.md": (
        "Try it: memory of ZeRO's stages",
        "zero",
        "Parameters, gradients and AdamW's moments. Activations come on top of them.",
        [
            (
                "Which stage do 7 billion parameters need on 8 GPUs of 24 GB?",
                "Stage 3, with 14 GB. In stage 2, the whole parameters and the shards take 26.3 GB.",
            ),
            (
                "Why does mixed precision save nothing in data parallelism?",
                "2 + 2 + 12 bytes are as many as 4 + 4 + 8: the optimizer keeps an fp32 copy of the parameters. It saves "
                "activations and time.",
            ),
        ],
    ),
    "07_3d/try_mesh.md": (
        "Try it: memory of a mesh",
        "mesh",
        "The formulas are those of `plan --model gpt`, for mixed precision, AdamW, 1F1B and sequence parallelism. `plan` "
        "knows more, and the time of a step, too.",
        [
            (
                "Find two meshes of 32 GPUs on which 30 billion parameters fit. Which one is faster?",
                "For instance 4 stages with 8 tensor ranks each, or 8 replicas with 4 tensor ranks and stage 1 of ZeRO. "
                "Ask `./workshop run 07 plan -n 1 --solution -- --model gpt --blocks 48 --width 7168 --heads 56 "
                "--context 2048 --gpus 32`.",
            ),
            (
                "Why does the first stage of a pipeline hold most activations?",
                "In 1F1B, it has done p forwards when its first backward begins. The last stage has done one.",
            ),
            (
                "What does a larger micro-batch cost, and what do more micro-batches?",
                "A larger one multiplies the activations. More of them take no memory once there are as many as stages.",
            ),
        ],
    ),
}
FOLDERS = ["docs", "golf", "slurm", "common", "model", "backend_cpu", "checker", "tools", "tests"]
SHOWN = (".svg", ".png")
CONF = f'''\
project = "Distributed GPU training in C++ and CUDA"
extensions = ["myst_parser"]
root_doc = "README"
html_theme = "furo"
html_title = "Distributed GPU training"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
myst_heading_anchors = 6
myst_enable_extensions = []
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
highlight_language = "none"
exclude_patterns = ["_files", "_figures"]
html_static_path = ["_figures"]
html_js_files = {SCRIPTS}
html_css_files = {STYLES}
'''


def pages(root: str = ".") -> list[str]:
    """The Markdown files of the workshop."""
    chapters = [chapter.name for chapter in all_chapters(os.path.join(root, "CMakeLists.txt"))]
    found = glob.glob(os.path.join(root, "*.md"))
    for folder in [*chapters, *FOLDERS]:
        found += glob.glob(os.path.join(root, folder, "**", "*.md"), recursive=True)
    names = sorted(os.path.relpath(file, root).replace(os.sep, "/") for file in found)
    return [name for name in names if not name.startswith("docs/slides/")]


def title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ")


def quiz(root: str, chapter: Chapter) -> str:
    """A chapter's questions on a page: those of predict, which ask for a number, and those of its README and of
    its programs' pages."""
    readme = read(os.path.join(root, chapter.name, "README.md"))
    text = f"# {title(readme)}: quiz\n\nPredict the numbers before you unfold the answers. Each one can be measured.\n"
    for question in predict.questions(read(os.path.join(root, "solutions", chapter.name, "predict.txt"))):
        text += (
            f"\n**{question.number}** {question.ask}\n\n<details><summary>Answer</summary>\n\n"
            f"{question.answer} {question.unit}. {question.why}\n\n"
            f"```sh\n./workshop predict {question.number} {question.answer}    # measures it\n```\n\n</details>\n"
        )
    return f"{text}\n## Why is it so?\n{chapter.questions(root)}\n"


def folded(question: str, answer: str) -> str:
    return f"\n**{question}**\n\n<details><summary>Answer</summary>\n\n{answer}\n\n</details>\n"


def figure(heading: str, name: str, shows: str, questions: list[tuple[str, str]]) -> str:
    """A page with an interactive figure, and what to find out with it."""
    place = f'<div data-figure="{name}">This figure needs JavaScript.</div>'
    return f"# {heading}\n\n{shows}\n\n{place}\n" + "".join(folded(*question) for question in questions)


class Book:
    """The files that Sphinx reads."""

    def __init__(self, root: str, folder: str):
        self.root, self.folder = root, folder
        self.pages = set(pages(root))
        chapters = all_chapters(os.path.join(root, "CMakeLists.txt"))
        self.made = {page: figure(*of) for page, of in FIGURES.items()}
        self.made |= {f"{chapter.name}/quiz.md": quiz(root, chapter) for chapter in chapters}
        self.pages |= self.made.keys()
        self.sources: set[str] = set()  # files that pages link to
        self.todos: dict[str, tuple[str, int, str]] = {}  # file, line and title of each TODO
        for chapter in chapters:
            for file in chapter.handed_out(root):
                if not os.path.isfile(file):
                    continue
                name = os.path.relpath(file, root).replace(os.sep, "/")
                self.sources.add(name)
                self.todos |= {todo: (name, line, about) for line, todo, about in marked(read(file))}
        self.handed_out = frozenset(self.sources)
        self.images: set[str] = set()

    def write(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for page in sorted(self.pages):
            text = self.made.get(page) or read(os.path.join(self.root, page))
            self.put(page, self.with_links(page, text) + self.contents(page))
        for file in sorted(self.sources):
            self.copy(file, "_files/" + file)
            language = "c++" if file.endswith((".h", ".cu", ".cpp")) else "python" if file.endswith(".py") else "none"
            self.put(
                f"source/{file}.md",
                f"---\norphan: true\n---\n# {file}\n\n"
                f"```{{literalinclude}} /_files/{file}\n:language: {language}\n:linenos:\n```\n",
            )
        for image in sorted(self.images):
            self.copy(image, image)
        for file in [*SCRIPTS, *STYLES]:
            self.copy(f"{FIGURES_FOLDER}/{file}", "_figures/" + file)
        self.put("conf.py", CONF)

    def put(self, name: str, text: str) -> None:
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def copy(self, name: str, to: str) -> None:
        path = os.path.join(self.folder, to)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(os.path.join(self.root, name), path)

    def with_links(self, page: str, text: str) -> str:
        """The text, with links that lead to pages of the book, and links from TODOs and names of the files that have
        them to their lines. Other code is left alone."""

        def replaced(found: re.Match[str]) -> str:
            if found["code"]:
                return self.named(page, found["code"])
            if found["target"]:
                return "](" + self.link(page, found["target"]) + ")"
            return self.todo(page, found["todo"]) if found["todo"] else found[0]

        return re.sub(
            r"^ *```.*?^ *```[^\n]*$|``.+?``|<!--.*?-->|^#[^\n]*$|(?P<code>`[^`\n]+`)(?!\])|`[^`\n]+`"
            r"|\[[^\]`\n]*(?=\]\()|\]\((?P<target>[^)\s]+)\)"
            r"|(?<!uestion )\b(?P<todo>[01][0-9]\.[0-9]{1,2})\b(?![.%]?[0-9]| ?(?:%|×|[kMG]i?B|m?s\b|µs|times))",
            replaced,
            text,
            flags=re.M | re.S,
        )

    def todo(self, page: str, number: str) -> str:
        """A TODO, linked to its line if the page is about its chapter. The questions of predict have such numbers, too."""
        file, line, about = self.todos.get(number, ("", 0, ""))
        if not file or page in self.made or not page.startswith((number[:2], "docs/teaching")):
            return number
        return f'<a href="{self.source(page, file)}#L{line}" title="{html.escape(about)}">{number}</a>'

    def named(self, page: str, code: str) -> str:
        """`ddp.h`, linked if that is a file of the page's chapter which a participant fills in."""
        file = posixpath.join(posixpath.dirname(page), code.strip("`"))
        return f'[{code}]({self.link(page, code.strip("`"))})' if file in self.handed_out else code

    @staticmethod
    def source(page: str, file: str) -> str:
        return posixpath.relpath(f"source/{file}.html", posixpath.dirname(page) or ".")

    def link(self, page: str, target: str) -> str:
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return target
        here = posixpath.dirname(page)
        file = posixpath.normpath(posixpath.join(here, path))
        if os.path.isdir(os.path.join(self.root, file)):
            file = posixpath.join(file, "README.md")
        if file in self.pages:
            to = file
        elif file.endswith(SHOWN):
            self.images.add(file)
            to = file
        elif os.path.isfile(os.path.join(self.root, file)):
            self.sources.add(file)
            to, anchor = f"source/{file}.md", ""
        else:
            return "#"  # a folder without a page
        return posixpath.relpath(to, here or ".") + ("#" + anchor if anchor else "")

    def contents(self, page: str) -> str:
        """The table of contents of the book, or of a chapter."""
        folder, name = posixpath.split(page)
        if page == "README.md":
            return "".join(self.toctree(caption, [self.matching(pattern) for pattern in of]) for caption, of in PARTS)
        if name != "README.md":
            return ""
        taken = {one for _, of in PARTS for pattern in of for one in self.matching(pattern)}
        of_folder = [
            other
            for other in sorted(self.pages - taken - {page})
            if posixpath.dirname(other) == folder
            or posixpath.dirname(posixpath.dirname(other)) == folder and other.endswith("/README.md")
        ]
        own = [other for other in of_folder if other in self.made]
        links = " · ".join(f"[{title(self.made[other])}]({posixpath.basename(other)})" for other in own)
        return ("\n" + links + "\n" if links else "") + self.toctree("", [of_folder], folder)

    def matching(self, pattern: str) -> list[str]:
        expression = re.escape(pattern + ".md").replace(r"\*", "[^/]*").replace(r"\[0\-9\]", "[0-9]")
        return [page for page in sorted(self.pages) if re.fullmatch(expression, page)]

    @staticmethod
    def toctree(caption: str, lists: list[list[str]], folder: str = "") -> str:
        entries = [posixpath.relpath(page, folder or ".")[: -len(".md")] for of in lists for page in of]
        if not entries:
            return ""
        options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
        return "\n\n```{toctree}\n" + options + "\n" + "\n".join(entries) + "\n```\n"


def python_with_sphinx(folder: str) -> str:
    """A Python that has what the book needs; installs it in a virtual environment if there is none."""
    given = os.environ.get("WORKSHOP_SPHINX", "")
    if given:
        return given
    python = os.path.join(folder, "venv", "bin", "python")
    complete = os.path.join(folder, "venv", "complete")  # lists what is installed
    if os.path.exists(complete) and read(complete) == "\n".join(PACKAGES):
        return python
    os.makedirs(folder, exist_ok=True)
    print(f"Installing {', '.join(PACKAGES)} in {folder}/venv", file=sys.stderr, flush=True)
    shutil.rmtree(os.path.join(folder, "venv"), ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", os.path.join(folder, "venv")],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
    ):
        if machine.quietly(command):
            raise Refused(
                "the book and the slides need Sphinx, which could not be installed: set WORKSHOP_SPHINX to a Python "
                f"that has {', '.join(PACKAGES)}"
            )
    with open(complete, "w", encoding="ascii") as file:
        file.write("\n".join(PACKAGES))
    return python


def book(_: Context, words: list[str]) -> int:
    rest, output = Words(words), os.path.join("build", "book", "html")
    if rest.peek() == "-o":
        rest.next()
        output = rest.next()
    if rest or not output:
        raise Refused(f"book takes -o and a folder, not '{rest.peek()}'")
    folder = os.path.join("build", "book")
    python = python_with_sphinx(folder)
    Book(".", os.path.join(folder, "source")).write()
    command = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", os.path.join(folder, "source"), output]
    if subprocess.run(command, check=False).returncode:
        raise Failed(1)
    print(f"{os.path.join(output, 'README.html')}: open it in a browser")
    return 0
