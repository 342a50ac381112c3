# SPDX-License-Identifier: Apache-2.0
"""`./workshop slides`: slides for each chapter, for reveal.js, and with --pdf as PDF files.

docs/slides/NN_name.md is the deck of a chapter. `##` begins a block of docs/teaching.md; its first line names the TODOs
and the minutes. `###` begins a slide. What follows `Notes:`, up to the next heading, is for the speaker (press S). The
questions of `predict`, of the chapter's README and of its programs' pages become slides at the end, with their answers
in the notes.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import re
import shutil
import subprocess
import time

from . import predict
from .book import FIGURES_FOLDER, python_with_sphinx, title
from .chapters import Chapter, all_chapters, marked, read
from .context import Context, Words
from .errors import Failed, Refused

FOLDER = "docs/slides"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
CONF = """\
project = "Distributed GPU training in C++ and CUDA"
extensions = ["myst_parser", "sphinx_revealjs"]
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
highlight_language = "none"
revealjs_style_theme = "white"
revealjs_static_path = ["_static"]
revealjs_css_files = ["slides.css"]
revealjs_script_conf = {"slideNumber": True, "transition": "none", "width": 1280, "height": 720}
revealjs_script_plugins = [{"name": "RevealNotes", "src": "revealjs/plugin/notes/notes.js"}]
"""


def notes(text: str) -> str:
    return f"\n````{{revealjs-notes}}\n{text.strip()}\n````\n"


def with_notes(text: str) -> str:
    """A deck, with the notes for the speaker as reveal.js gets them."""
    return re.sub(r"^Notes: (.*?)(?=^#|\Z)", lambda found: notes(found[1]) + "\n", text, flags=re.M | re.S)


def asked(text: str) -> list[tuple[str, str]]:
    """The questions of a chapter and their answers."""
    found = re.findall(
        r"^[0-9]+\. (.*?)\n *<details><summary>Answer</summary>\n(.*?)\n *</details>", text, flags=re.M | re.S
    )
    return [(" ".join(question.split()), re.sub(r"^ {1,3}", "", answer, flags=re.M).strip()) for question, answer in found]


def with_files(text: str, files: dict[str, str]) -> str:
    """A deck whose blocks say which files to open and what to type. `files`: that of each TODO."""

    def of_block(found: re.Match[str]) -> str:
        first, last = (tuple(map(int, todo.split("."))) for todo in (found[1], found[2] or found[1]))
        inside = {file for todo, file in files.items() if first <= tuple(map(int, todo.split("."))) <= last}
        names = ", ".join(f"`{file}`" for file in sorted(inside))
        return f"{found[0]}\n\n{names}\n\n`./workshop check {found[1]}`"

    return re.sub(r"(?<=\n\n)([0-9]{2}\.[0-9]+)(?:.*([0-9]{2}\.[0-9]+))? · [0-9]+ minutes$", of_block, text, flags=re.M)


def deck(root: str, chapter: Chapter) -> str:
    files = {
        todo: os.path.relpath(file, root).replace(os.sep, "/")
        for file in chapter.handed_out(root)
        for _, todo, _ in marked(read(file))
        if todo[-1].isdecimal()
    }
    text = with_notes(with_files(read(os.path.join(root, FOLDER, chapter.name + ".md")), files))
    text += "\n## Predict, then measure\n\nA number first, then the run that measures it\n"
    for question in predict.questions(read(os.path.join(root, "solutions", chapter.name, "predict.txt"))):
        text += f"\n### {question.number}\n\n{question.ask}\n"
        text += notes(
            f"{question.answer} {question.unit}. {question.why}\n\n"
            f"`./workshop predict {question.number} {question.answer}` measures it."
        )
    text += "\n## Questions\n\nTo discuss before you look at the answers\n"
    for number, (question, answer) in enumerate(asked(chapter.questions(root)), 1):
        text += f"\n### Question {number}\n\n{question}\n{notes(answer)}"
    return re.sub(r"(?<!!)\[([^\]]+)\]\([^)]+\)", r"\1", text)  # there are no other pages to link to


def write(root: str, folder: str) -> list[str]:
    """Writes what Sphinx reads. Returns the names of the decks."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "_static"))
    shutil.copyfile(os.path.join(root, FIGURES_FOLDER, "slides.css"), os.path.join(folder, "_static", "slides.css"))
    decks = {"welcome": with_notes(read(os.path.join(root, FOLDER, "welcome.md")))}
    decks |= {chapter.name: deck(root, chapter) for chapter in all_chapters(os.path.join(root, "CMakeLists.txt"))}
    titles = []
    for name, text in decks.items():
        for image in sorted(set(re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text))):
            path = posixpath.normpath(posixpath.join(FOLDER, image))
            os.makedirs(os.path.join(folder, posixpath.dirname(path)), exist_ok=True)
            shutil.copyfile(os.path.join(root, path), os.path.join(folder, path))
            text = text.replace(f"({image})", f"({path})")
        with open(os.path.join(folder, name + ".md"), "w", encoding="utf-8") as file:
            file.write(text)
        titles.append(f"- [{title(text)}]({name}.md)")
    with open(os.path.join(folder, "index.md"), "w", encoding="utf-8") as file:
        tree = "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(decks) + "\n```\n"
        file.write("# Distributed GPU training in C++ and CUDA\n\n" + "\n".join(titles) + tree)
    with open(os.path.join(folder, "conf.py"), "w", encoding="utf-8") as file:
        file.write(CONF)
    return list(decks)


class Browser:
    """Chromium without a window, over the pipes of its DevTools protocol. Its command line prints too early: reveal.js
    lays the slides out as pages first."""

    def __init__(self, program: str):
        from_here, to_here = os.pipe(), os.pipe()  # what it reads from descriptor 3, and writes to 4
        words = [program, "--headless", "--disable-gpu", "--remote-debugging-pipe"]
        words += ["--no-sandbox"] if os.geteuid() == 0 else []
        command = ["sh", "-c", f'exec "$@" 3<&{from_here[0]} 4>&{to_here[1]}', "sh", *words]
        self.process = subprocess.Popen(
            command, pass_fds=(from_here[0], to_here[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(from_here[0])
        os.close(to_here[1])
        self.sent, self.received = open(from_here[1], "wb"), open(to_here[0], "rb")
        self.number, self.session = 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: object) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.sent.write(json.dumps(message).encode() + b"\0")
        self.sent.flush()
        while True:
            text = bytearray()
            while not text.endswith(b"\0"):
                byte = self.received.read(1)
                if not byte:
                    raise Refused("the browser that prints the slides has ended")
                text += byte
            answer = json.loads(text[:-1])
            if answer.get("id") == self.number:
                return answer.get("result", {})

    def print_slides(self, html: str, pdf: str) -> None:
        url = f"file://{os.path.abspath(html)}?print-pdf"
        self.call("Page.navigate", url=url)
        ready = (
            f"location.href == {json.dumps(url)} && Reveal.isReady() && "
            "document.querySelectorAll('.pdf-page').length == Reveal.getTotalSlides()"
        )
        end = time.monotonic() + 60
        while self.call("Runtime.evaluate", expression=ready).get("result", {}).get("value") is not True:
            if time.monotonic() > end:
                raise Refused(f"{html} has no pages to print after a minute")
            time.sleep(0.1)
        drawn = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 200)))"
        self.call("Runtime.evaluate", expression=drawn, awaitPromise=True)
        printed = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        with open(pdf, "wb") as file:
            file.write(base64.b64decode(printed["data"]))

    def close(self) -> None:
        self.session = ""
        self.call("Browser.close")
        self.process.wait()


def print_all(html: str, names: list[str]) -> None:
    program = next((found for found in map(shutil.which, BROWSERS) if found), None)
    if program is None:
        raise Refused("--pdf needs Chromium or Chrome, which prints the slides")
    browser = Browser(program)
    try:
        for name in names:
            browser.print_slides(os.path.join(html, name + ".html"), os.path.join(html, name + ".pdf"))
    finally:
        browser.close()


def slides(_: Context, words: list[str]) -> int:
    rest, html, pdf = Words(words), os.path.join("build", "slides"), False
    while rest and rest.peek() in ("-o", "--pdf"):
        if rest.next() == "--pdf":
            pdf = True
        else:
            html = rest.next()
    if rest or not html:
        raise Refused(f"slides takes --pdf, and -o with a folder, not '{rest.peek()}'")
    folder = os.path.join("build", "book")
    python = python_with_sphinx(folder)
    source = os.path.join(folder, "slides")
    names = write(".", source)
    command = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "revealjs", source, html]
    if subprocess.run(command, check=False).returncode:
        raise Failed(1)
    if pdf:
        print_all(html, names)
    print(f"{os.path.join(html, 'index.html')}: open it in a browser; S shows the notes")
    return 0
