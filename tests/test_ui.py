"""The chat page in a real browser: phone and desk, by day and by night, by hand and by keys, and what goes wrong."""

import threading
import time

import pytest
from browsers import Page
from scripted import CUT, Scripted
from served import serving, write_model

EVIL = '<img src=x onerror="harmed = 1"><script>harmed = 1</script></textarea><svg onload=harmed=1>&lt;b&gt;'
LINKS = (
    "[one](javascript:harmed=1) [two](https://example.org/?a=1&b=2) [three](data:text/html,<script>harmed=1</script>)"
)
WORDS = """Here is **bold**, *italic* and `a * b * c`, but 2*3*4 and snake_case_name stay.

## Things

- first
- second
  1. inner

```python
def answer():
    return "<b>42</b>"  # a line that is longer than what a phone has room for, so that its box has to scroll
```
The end."""
SUM = [
    {"content": "It costs ", "parts": [{"type": "text", "text": "It costs "}, {"type": "python", "text": "12*(3"}]},
    {"content": "", "parts": [{"type": "python", "text": "+4)"}, {"type": "python_output", "text": "84"}]},
    " coins.",
]
LAST = ".turn:last-of-type"


@pytest.fixture
def serve():
    """Starts scripted servers, which end with the test."""
    servers = []

    def start(answers: dict | None = None, **options) -> Scripted:
        servers.append(Scripted(answers or {}, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def visit(chromium):
    """Opens a page of its own at a server; at the end none has complained."""
    pages = []

    def start(address: str, *look, **options) -> Page:
        pages.append(chromium.page(*look, **options))
        pages[-1].goto(address)
        return pages[-1]

    yield start
    for page in pages:
        page.js("0")  # events come before its answer
        page.close()
    assert [page.wrongs for page in pages] == [[] for _ in pages]


def say(page: Page, text: str, wait: bool = True) -> None:
    page.click("#text")
    page.type(text)
    page.press("Enter")
    if wait:
        idle(page)


def idle(page: Page) -> None:
    page.wait("!document.querySelector('#log[data-live]')")


def said(page: Page) -> list[str]:
    return page.js("[...document.querySelectorAll('.turn .body')].map(body => body.innerText)")


def press(page: Page, title: str, within: str = LAST) -> None:
    page.click(f'{within} [title="{title}"]')


def clipboard(page: Page) -> str:
    page.wait("document.querySelector('#toast').innerText.includes('Copied')")
    return page.js("navigator.clipboard.readText()")


def test_an_answer_comes_piece_by_piece_and_can_be_copied(serve, visit, tmp_path):
    more = threading.Event()
    server = serve({"Tell me": [WORDS[:90], more, WORDS[90:]]}, models=["small", "large"])
    page = visit(server.address)
    page.wait("document.querySelector('.hello h2').innerText === 'Talk to small'")
    page.shot(tmp_path / "hello.png")
    page.js("document.querySelector('#model').value = 'large'; document.querySelector('#model').onchange()")
    say(page, "Tell me", wait=False)
    page.wait(f"document.querySelector('{LAST} .body').innerText.includes('Things')")
    page.js("first = document.querySelector('.live .body p'); getSelection().selectAllChildren(first)")
    assert page.js("[document.querySelector('#send').title, document.querySelector('#said').innerText]") == [
        "Stop",
        "Answering.",
    ]
    page.shot(tmp_path / "streaming.png")
    more.set()
    idle(page)
    assert "2*3*4 and snake_case_name stay." in page.js("getSelection().toString()")  # a reader's selection stays
    made = "[...document.querySelectorAll('.turn.assistant .body *')].map(e => e.localName).join(' ')"
    assert page.js(made).startswith("p strong em code h4 ul li p li p ol li p div div span button")
    assert page.text(f"{LAST} pre") == WORDS.split("```")[1].removeprefix("python\n").rstrip("\n")
    assert page.js("document.querySelector('#said').textContent") == WORDS
    page.shot(tmp_path / "answer.png")
    press(page, "Copy message")
    assert clipboard(page) == WORDS
    press(page, "Copy code")
    page.wait("navigator.clipboard.readText().then(text => text.startsWith('def answer()'))")
    assert server.asked == [
        {
            "model": "large",
            "messages": [{"role": "user", "content": "Tell me"}],
            "stream": True,
            "temperature": 0.8,
            "top_k": 50,
            "max_tokens": None,
        }
    ]


def test_a_stop_ends_it_at_the_server_and_keeps_what_came(serve, visit):
    never = threading.Event()
    server = serve({"Go": ["One two", never], "Wait": [never]})
    page = visit(server.address)
    for stop in (lambda: page.press("Escape"), lambda: page.click("#send")):
        say(page, "Go", wait=False)
        page.wait("document.querySelector('.live .body')?.innerText === 'One two'")
        stop()
        idle(page)
        assert server.gone.wait(10)
        server.gone.clear()
        assert page.text(f"{LAST} .end") == "Stopped."
    say(page, "Wait", wait=False)
    page.press("Escape")
    idle(page)
    assert said(page) == ["Go", "One two", "Go", "One two", "Wait"]
    assert page.text(".trouble") == "Stopped.\nRetry"
    say(page, "Else")  # takes the place of a question that has no answer
    assert said(page)[4:] == ["Else", "You said: Else"]


def test_other_answers_and_edits_are_branches(serve, visit, tmp_path):
    server = serve({"Name one": [["Apple"], ["Pear"]], "And?": ["More"]})
    page = visit(server.address)
    say(page, "Name one")
    say(page, "And?")
    press(page, "Answer again", ".turn:nth-of-type(2)")
    idle(page)
    assert said(page) == ["Name one", "Pear"]
    press(page, "Version before")
    assert said(page) == ["Name one", "Apple", "And?", "More"]
    press(page, "Edit message", ".turn:nth-of-type(3)")
    page.shot(tmp_path / "edit.png")
    page.type(" Really")
    page.press("Escape")
    assert said(page)[2] == "And?"
    press(page, "Edit message", ".turn:nth-of-type(3)")
    page.type(" Really")
    page.press("Enter")
    idle(page)
    assert said(page) == ["Name one", "Apple", "And? Really", "You said: And? Really"]
    assert [message["content"] for message in server.asked[-1]["messages"]] == ["Name one", "Apple", "And? Really"]
    press(page, "Version before", ".turn:nth-of-type(3)")
    assert said(page)[2:] == ["And?", "More"]


def test_what_the_calculator_did_stands_in_its_place_and_goes_back(serve, visit, tmp_path):
    server = serve({"How much?": SUM})
    page = visit(server.address)
    say(page, "How much?")
    assert said(page)[1] == "It costs 12*(3+4) = 84 coins."
    assert page.js("document.querySelectorAll('.turn p').length") == 1
    page.shot(tmp_path / "tool.png")
    press(page, "Copy message")
    assert clipboard(page) == "It costs 12*(3+4) = 84 coins."
    say(page, "And?")
    parts = [("text", "It costs "), ("python", "12*(3+4)"), ("python_output", "84"), ("text", " coins.")]
    sent = [{"type": kind, "text": text} for kind, text in parts]
    assert server.asked[-1]["messages"][1] == {"role": "assistant", "content": sent}


def test_what_is_said_is_text_wherever_it_is_shown(serve, visit, tmp_path):
    flood = "*[`_" * 2000 + "\n" + "- " * 2000
    page = visit(serve({EVIL: [f"# {EVIL}\n\n- {EVIL}\n\n{LINKS}\n\n`{EVIL}`\n\n```{EVIL}\n{EVIL}\n```"]} | {
        "tool": [{"parts": [{"type": "python", "text": EVIL}, {"type": "python_output", "text": EVIL}]}],
        "flood": [flood],
        "error": [(500, {}, {"message": EVIL})],
    }, models=[EVIL]).address)  # fmt: skip
    page.wait("document.querySelector('#model').value")
    assert page.text(".hello h2") == f"Talk to {EVIL}"
    page.click("#tune")
    page.click("#settings textarea")
    page.type(EVIL)
    page.click("#settings .main")
    say(page, EVIL)
    assert page.text(".system") == f"System: {EVIL}"
    assert page.text("#list .open") == page.js("document.title").removesuffix(" · nanochat") == EVIL[:80]
    assert said(page)[0] == EVIL
    assert said(page)[1].count(EVIL) == 4
    links = "[...document.querySelectorAll('.body a')].map(a => [a.innerText, a.href, a.rel, a.target])"
    assert page.js(links) == [["two", "https://example.org/?a=1&b=2", "noopener noreferrer", "_blank"]]
    say(page, "tool")
    assert EVIL in page.text(".tool")
    say(page, "flood")
    assert len(page.js(f"document.querySelector('{LAST} .body').textContent")) > 9000
    say(page, "error")
    assert EVIL in page.text(".trouble")
    page.shot(tmp_path / "evil.png")
    page.goto(page.js("location.href"))  # from what the browser keeps
    assert said(page)[0] == EVIL
    assert page.js("typeof harmed") == "undefined"
    assert page.js("document.querySelectorAll('script, img, iframe, svg[onload]').length") == 1


TROUBLES = {
    "busy": (429, {"Retry-After": "1"}, {}, "The server is busy with other conversations.", "Retry in 1 s"),
    "closing": (503, {}, {}, "The server is not ready, or about to end.", "Retry"),
    "odd": (400, {}, {"message": "that is odd"}, "The server refused: that is odd", "Retry"),
    "much": (400, {}, {"code": "context_length_exceeded"}, "Start a new one.", "New conversation"),
}


def test_what_goes_wrong_is_said_and_can_be_tried_again(serve, visit, tmp_path):
    refused = {name: [[about[:3]], ["Now it works."]] for name, about in TROUBLES.items()}
    page = visit(serve({**refused, "broken": [["This much came", CUT], ["All of it came."]]}).address)
    for name, (*_, sentence, act) in TROUBLES.items():
        say(page, name)
        assert page.text(".trouble span").endswith(sentence)
        assert page.text(".trouble button") == act
        assert page.js("document.querySelector('.trouble span').role") == "alert"
        page.shot(tmp_path / f"trouble-{name}.png")
        page.wait("!document.querySelector('.trouble button').disabled")
        page.click(".trouble button")
        idle(page)
        assert said(page)[-1:] == (["Now it works."] if act.startswith("Retry") else [])
    say(page, "broken")
    assert said(page)[-1] == "This much came"
    assert page.text(f"{LAST} .end") == "The connection broke before the answer was complete."
    page.click(f"{LAST} .acts .button")
    idle(page)
    assert said(page)[-1] == "All of it came."


def test_a_server_that_is_gone_comes_back(serve, visit):
    server = serve()
    page = visit(server.address)
    page.wait("document.querySelector('#model').value")
    server.close()
    say(page, "There?")
    assert "cannot be reached" in page.text(".trouble")
    serve(port=server.server.server_port)
    page.click(".trouble button")
    idle(page)
    assert said(page) == ["There?", "You said: There?"]


def test_a_key_is_asked_for_until_it_is_the_right_one(serve, visit, tmp_path):
    page = visit(serve(key="secret").address)
    page.wait("document.querySelector('#lock').open")
    page.type("wrong")
    page.press("Enter")
    page.wait("document.querySelector('#lock-note').innerText === 'This key was not accepted.'")
    page.shot(tmp_path / "key.png")
    page.press("Escape")
    page.wait("document.querySelector('#toast').innerText.includes('asks for a key')")
    say(page, "Hello", wait=False)
    page.wait("document.querySelector('#lock').open")
    page.type("secret")
    page.press("Enter")
    idle(page)
    assert said(page) == ["Hello", "You said: Hello"]
    assert page.js("[...Object.values(localStorage)].join().includes('secret')") is False


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


def test_with_the_real_server(visit, tmp_path):
    write_model(tmp_path, max_seq_len=1024)
    with serving(tmp_path) as server:
        page = visit(f"{server.url}/")
        page.wait("document.querySelector('#model').value === 'nanochat-mine-base'")
        page.click("#tune")
        page.click("#settings [type=range]")
        page.press("Home")  # the likeliest tokens: what it says is known
        page.press("Escape")
        say(page, "the quick brown fox")
        press(page, "Answer again")
        idle(page)
        assert page.text(f"{LAST} .acts") == "2 / 2"
        press(page, "Version before")
        assert said(page)[1]
        say(page, "Hello", wait=False)  # to which it never finds an end
        page.wait("document.querySelector('.live .body')?.innerText.length > 20")
        page.shot(tmp_path / "streaming.png")
        page.press("Escape")
        idle(page)
        assert page.text(f"{LAST} .end") == "Stopped."
        while server.metric("running"):
            time.sleep(0.02)
        page.click("#tune")
        page.click("#settings [name=max_tokens]")
        page.type("5")
        page.press("Enter")
        say(page, "Hello")
        assert page.text(f"{LAST} .end") == "The answer reached the limit of tokens."
        say(page, "dog " * 1200)
        assert page.text(".trouble").endswith("Start a new one.\nNew conversation")
        page.click(".trouble button")
        assert page.text(".hello h2") == "Talk to nanochat-mine-base"
