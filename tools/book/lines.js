// SPDX-License-Identifier: Apache-2.0
// On a page with a source file, #L57 in the address shows line 57.
"use strict";

function showLine() {
  const number = /^#L([0-9]+)$/.exec(location.hash);
  if (number === null) return;
  for (const at of document.querySelectorAll("span.linenos")) {
    at.classList.toggle("shown", at.textContent.trim() === number[1]);
    if (at.classList.contains("shown")) at.scrollIntoView({ block: "center" });
  }
}

window.addEventListener("load", showLine);
window.addEventListener("hashchange", showLine);
