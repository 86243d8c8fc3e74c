"""What can be checked of the documents: their links, the messages they quote, and the files they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("third_party/*.md")])

_CODE = re.compile(r"^```.*?^```$", re.M | re.S)


def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text())


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken_links(page: Path) -> list[str]:
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            found.append(link)
        elif fragment:
            headings = re.findall(r"^#+ (.*)$", prose(target), re.M)
            if fragment not in map(anchor, headings):
                found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading: of `two` words\n[a](page.md#a-heading-of-two-words) [b](none.md) [c](#none) [d](https://x.y/z)\n"
    )
    assert broken_links(page) == ["none.md", "#none"]


def sources() -> str:
    """Everything that can print a message, with string literals that are written in pieces joined."""
    patterns = ("src/**/*.cc", "src/**/*.h", "python/fast_ulysses/**/*.py", "CMakeLists.txt", "cmake/*")
    text = "".join(path.read_text() for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    return re.sub(r'"\s*(?:\+\s*)?f?"', "", text)


def is_known(fragment: str, known: str) -> bool:
    """Whether a source has it, in one piece or in two: some messages are put together from two literals."""
    pairs = [(fragment[:cut].strip(_EDGES), fragment[cut:].strip(_EDGES)) for cut in range(len(fragment))]
    return fragment in known or any(all(len(each) > 3 and each in known for each in pair) for pair in pairs)


_EDGES = " ':;,()"


def unknown_fragments(message: str, known: str) -> list[str]:
    """What of a message, between its variable parts (`...`), no source has."""
    message = re.sub(r"^\w+(Error|Argument): ", "", message)
    fragments = [fragment.strip(_EDGES) for fragment in message.split("...")]
    return [fragment for fragment in fragments if len(fragment) > 3 and not is_known(fragment, known)]


def test_the_messages_of_troubleshooting_are_real() -> None:
    known = sources()
    page = prose(ROOT / "docs/troubleshooting.md")
    page = page[page.index("## The group fell back") : page.index("## It hangs")] + page[page.index("## Building") :]
    messages = [
        message
        for cell in re.findall(r"^\| (.*?) \|", page, re.M)
        for message in re.findall(r"`([^`]+)`", cell)
        if " " in message and not message.startswith("import ")
    ]
    assert len(messages) > 40
    assert {message: unknown for message in messages if (unknown := unknown_fragments(message, known))} == {}
    assert unknown_fragments("StateError: group '...' has gone fishing; destroy() it", known)


def test_every_source_file_is_in_the_design() -> None:
    page = (ROOT / "docs/design.md").read_text()
    named = set(re.findall(r"`(?:[a-z_]+/)?([A-Za-z_]+)(?:\.h|\.py|\.cc)?`", page))
    files = [*ROOT.glob("include/fast_ulysses/*.h"), *ROOT.glob("src/**/*.*"), *ROOT.glob("python/fast_ulysses/*.py")]
    stems = {path.stem for path in files if path.suffix in (".h", ".cc", ".py") and not path.name.startswith("__")}
    assert stems - named == set()


def test_the_code_about_transports_is_that_of_the_example() -> None:
    example = (ROOT / "examples/custom_transport.cc").read_text()
    parts = {name: text.strip() for name, text in re.findall(r"^// \[(\w+)\]\n(.*?)^// \[/\1\]$", example, re.M | re.S)}
    assert set(parts) == {"transport", "engine", "exchange"}
    blocks = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "docs/adding_a_transport.md").read_text(), re.M | re.S)
    assert sorted(block.strip() for block in blocks) == sorted(parts.values())
