"""How the chat page looks, on phones and by night, how it is used by keys, and what the browser keeps of it."""

import threading

import pytest
from talks import SUM, WORDS, idle, press, said, say


def test_conversations_are_kept_named_and_deleted(serve, visit):
    page = visit(serve().address)
    titles = "[...document.querySelectorAll('#list .open')].map(row => row.innerText)"
    say(page, "First")
    page.click("#side .new")
    say(page, "Second")
    page.goto(page.js("location.href"))
    assert said(page) == ["Second", "You said: Second"]
    assert page.js(titles) == ["Second", "First"]
    press(page, "Rename conversation", "#list .now")
    page.type("Renamed")
    page.press("Enter")
    page.click('#list [title="First"]')
    assert said(page) == ["First", "You said: First"]
    page.js("history.back()")
    page.wait("document.title.startsWith('Renamed')")
    assert said(page) == ["Second", "You said: Second"]
    press(page, "Delete conversation", "#list .now")
    assert page.js(titles) == ["First"]
    page.click("#toast button")
    assert page.js(titles) == ["Renamed", "First"]
    press(page, "Delete conversation", "#list .now")
    page.goto(page.js("location.href"))
    assert page.js(titles) == ["First"]


FORBID = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });"
FILL = "for (let n = 1 << 23; n; n >>= 1) try { localStorage['x' + n] = 'x'.repeat(n); } catch {}"


@pytest.mark.parametrize("before", [FORBID, FILL])
def test_it_works_where_the_browser_keeps_nothing(serve, visit, before):
    page = visit(serve().address, before=before)
    say(page, "Hello")
    assert "storage is full or forbidden" in page.text("#toast")
    say(page, "Again")
    page.click("#theme")
    assert said(page) == ["Hello", "You said: Hello", "Again", "You said: Again"]
    page.click("#side .new")
    page.click('#list [title="Hello"]')
    assert len(said(page)) == 4


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (390, "dark")])
def test_on_a_phone_nothing_is_wider_than_the_screen(serve, visit, tmp_path, width, scheme):
    server = serve(
        {"Tell me": [WORDS], "sum": [*SUM, "x" * 300], "busy": [(429, {"Retry-After": "9"}, {})]},
        models=["m" * 60, "b"],
    )
    page = visit(server.address, width, 700, scheme)
    page.wait("document.querySelector('#model').value")
    page.shot(tmp_path / "hello.png")
    for text in ("Tell me", "sum", "x" * 200, "busy"):
        say(page, text)
        page.shot(tmp_path / f"{text[:7]}.png")
        out = f"e => e.getBoundingClientRect().right > {width} + .5 && !e.closest('pre, .unseen')"
        assert page.js(f"[...document.querySelectorAll('#page *')].filter({out}).map(e => e.outerHTML)") == []
        scrolls = (
            "[document.documentElement, document.querySelector('#scroll')].map(e => e.scrollWidth - e.clientWidth)"
        )
        assert page.js(scrolls) == [0, 0]
    assert page.js("document.querySelector('pre').scrollWidth > document.querySelector('pre').clientWidth")
    page.click("#menu")
    page.shot(tmp_path / "list.png")
    page.click("#close")
    page.click("#tune")
    page.shot(tmp_path / "settings.png")
    assert page.js("document.querySelector('dialog[open]').getBoundingClientRect().right") <= width
    page.press("Escape")
    page.click("#bar .new")
    assert said(page) == []


def test_by_day_and_by_night(serve, visit, tmp_path):
    page = visit(serve({"Tell me": [WORDS], "sum": SUM}).address, 1200, 800, "dark")
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    say(page, "Tell me")
    assert page.js(shade) < 50
    say(page, "sum")
    page.shot(tmp_path / "dark.png")
    page.look(1200, 800, "light")
    assert page.js(shade) > 200
    page.shot(tmp_path / "light.png")
    page.click("#theme")
    assert page.js(shade) < 50
    page.goto(page.js("location.href"))
    assert page.js(shade) < 50
    page.click("#theme")  # as the system has it again
    page.look(1200, 800, "dark")
    page.wait(f"{shade} < 50")


def test_all_of_it_by_keys(serve, visit):
    server = serve({"Hi\nyou": [["Yes"], ["No"]]})
    page = visit(server.address)
    page.wait("document.querySelector('#model').value")
    page.type("Hi")
    page.press("Enter", shift=True)
    page.type("you")
    page.press("Enter")
    idle(page)
    assert said(page) == ["Hi\nyou", "Yes"]
    names, here = [], "document.activeElement"
    for _ in range(16):
        page.press("Tab")
        names.append(page.js(f"{here}.title || {here}.getAttribute('aria-label') || {here}.id"))
        if names[-1]:  # not the document, between its end and its beginning
            assert (
                page.js(f"getComputedStyle({here}.id === 'text' ? {here}.form : {here}).outlineStyle") != "none"
                or names[-1] == "Message"
            )
    order = "New conversation|Hi|Rename conversation|Delete conversation|Conversations|Light or dark|Settings|scroll"
    order += "|Copy message|Edit message|Copy message|Answer again|Message"
    assert "|".join(filter(None, names)).startswith(order), names
    while page.js(f"{here}.title") != "Answer again":
        page.press("Tab")
    page.press("Enter")
    idle(page)
    assert said(page) == ["Hi\nyou", "No"]
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]]
    assert ("log", "Hi") in roles
    assert [name for role, name in roles if role in ("button", "textbox", "combobox") and not name] == []


def test_it_follows_a_reader_who_is_at_the_end_and_nobody_else(serve, visit):
    steps = [threading.Event() for _ in range(3)]
    lines = "\n\n".join(f"Line {n}" for n in range(60))
    page = visit(serve({"Go": [lines, steps[0], lines, steps[1], lines, steps[2]]}).address)
    say(page, "Go", wait=False)
    scroll = "document.querySelector('#scroll')"
    left = f"({scroll}.scrollHeight - {scroll}.scrollTop - {scroll}.clientHeight)"
    page.wait(f"document.querySelectorAll('.body p').length === 60 && {left} < 2")
    page.js(f"{scroll}.scrollTop = 100")
    page.wait("!document.querySelector('#down').hidden")
    steps[0].set()
    page.wait("document.querySelectorAll('.body p').length > 100")
    assert page.js(f"{scroll}.scrollTop") == 100
    page.click("#down")
    steps[1].set()
    page.wait(f"document.querySelectorAll('.body p').length > 160 && {left} < 2")
    steps[2].set()
    idle(page)
