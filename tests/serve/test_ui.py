"""The chat page in a real browser: answers, branches, errors, keys, storage, small screens, keyboard."""

import json
import threading

import pytest
from browsers import Page
from scripted import CUT

from bench.served import serving, write_model

MARKDOWN = """Here is **bold**, *italic* and `a * b * c`, but 2*3*4 and snake_case_name stay.

## Things

- first
- second
  1. inner

```python
def answer():
    return "<b>42</b>"  # a line that is longer than what a phone has room for, so that its box has to scroll
```
The end."""
CALCULATION = json.loads("""[
    {"content": "It costs ", "parts": [{"type": "text", "text": "It costs "}, {"type": "python", "text": "12*(3"}]},
    {"content": "", "parts": [{"type": "python", "text": "+4)"}, {"type": "python_output", "text": "84"}]},
    " coins."
]""")
LAST_TURN = ".turn:last-of-type"


def send(page: Page, text: str, wait: bool = True) -> None:
    page.click("#text")
    page.type(text)
    page.press("Enter")
    if wait:
        settle(page)


def settle(page: Page) -> None:
    page.wait("!document.querySelector('#log[data-live]')")


def texts(page: Page):
    return page.js("[...document.querySelectorAll('.turn .body')].map(body => body.innerText)")


def press(page: Page, title: str, within: str = LAST_TURN) -> None:
    page.click(f'{within} [title="{title}"]')


def clipboard(page: Page):
    page.wait("document.querySelector('#toast').innerText.includes('Copied')")
    return page.js("navigator.clipboard.readText()")


EVIL = '<img src=x onerror="harmed = 1"><script>harmed = 1</script></textarea><svg onload=harmed=1>&lt;b&gt;'
LINKS = "[one](javascript:harmed=1) [two](https://example.org/?a=1&b=2) "
LINKS += "[three](data:text/html,<script>harmed=1</script>)"


def test_an_answer_is_streamed_and_can_be_copied(serve, visit) -> None:
    more = threading.Event()
    server = serve({"Tell me": [MARKDOWN[:90], more, MARKDOWN[90:]]})
    page = visit(server.address)
    page.wait("document.querySelector('.hello h2').innerText === 'Talk to tiny'")
    send(page, "Tell me", wait=False)
    page.wait(f"document.querySelector('{LAST_TURN} .body').innerText.includes('Things')")
    page.js("first = document.querySelector('.live .body p'); getSelection().selectAllChildren(first)")
    assert page.js("[$('#send').title, $('#announcement').innerText]") == ["Stop", "Answering."]
    more.set()
    settle(page)
    assert "2*3*4 and snake_case_name stay." in page.js("getSelection().toString()")  # a reader's selection stays
    made = "[...document.querySelectorAll('.turn.assistant .body *')].map(e => e.localName).join(' ')"
    assert page.js(made).startswith("p strong em code h4 ul li p li p ol li p div div span button")
    assert page.text(f"{LAST_TURN} pre") == MARKDOWN.split("```")[1].removeprefix("python\n").rstrip("\n")
    assert page.js("document.querySelector('#announcement').textContent") == MARKDOWN
    press(page, "Copy message")
    assert clipboard(page) == MARKDOWN
    press(page, "Copy code")
    page.wait("navigator.clipboard.readText().then(text => text.startsWith('def answer()'))")
    [asked] = server.asked
    assert asked.pop("messages") == [{"role": "user", "content": "Tell me"}]
    assert asked == {"model": "tiny", "stream": True, "temperature": 0.6, "top_k": 50, "max_tokens": None}


def test_the_page_starts_with_the_settings_of_the_model(serve, visit) -> None:
    server = serve(about={"temperature": 0.25})
    page = visit(server.address)
    send(page, "Who is there?")
    page.js("document.querySelector('#settings [name=temperature]').value = 1")
    page.js("document.querySelector('#settings form').oninput({ target: $('#settings [name=temperature]') })")
    send(page, "Again")
    page.js("document.querySelector('#reset').click()")
    send(page, "And again")
    assert [one["temperature"] for one in server.asked] == [0.25, 1, 0.25]
    assert [one["top_k"] for one in server.asked] == [50] * 3


STARTS = "[...document.querySelectorAll('.hello .button')].map(e => e.innerText)"


def test_suggestions_are_sent_at_a_click(serve, visit) -> None:
    server = serve(about={"suggestions": ["Where does Dugi live?", "How much is 2 + 3?"]})
    page = visit(server.address)
    page.wait(f"{STARTS}.length")
    assert page.js(STARTS) == ["Where does Dugi live?", "How much is 2 + 3?"]
    page.click(".hello .button:nth-of-type(2)")
    settle(page)
    assert texts(page) == ["How much is 2 + 3?", "You said: How much is 2 + 3?"]
    page.click("#side .new")
    assert len(page.js(STARTS)) == 2
    assert page.js("document.activeElement.id") == "text"
    page = visit(serve(about={"suggestions": ["Dugi lives in"], "is_base": True}).address)
    page.wait(f"{STARTS}.length")
    assert page.text(".hello p") == "This model continues a text: give it a beginning."


def test_stopping_ends_the_request_and_keeps_the_beginning(serve, visit) -> None:
    never = threading.Event()
    server = serve({"Go": ["One two", never], "Wait": [never]})
    page = visit(server.address)
    for stop in (lambda: page.press("Escape"), lambda: page.click("#send")):
        send(page, "Go", wait=False)
        page.wait("document.querySelector('.live .body')?.innerText === 'One two'")
        stop()
        settle(page)
        assert server.gone.wait(10)
        server.gone.clear()
        assert page.text(f"{LAST_TURN} .end") == "Stopped."
    send(page, "Wait", wait=False)
    page.press("Escape")
    settle(page)
    assert texts(page) == ["Go", "One two", "Go", "One two", "Wait"]
    assert page.text(".trouble") == "Stopped.\nRetry"
    send(page, "Else")  # takes the place of a question that has no answer
    assert texts(page)[4:] == ["Else", "You said: Else"]


def test_other_answers_and_edits_are_branches(serve, visit) -> None:
    server = serve({"Name one": [["Apple"], ["Pear"]], "And?": ["More"]})
    page = visit(server.address)
    send(page, "Name one")
    send(page, "And?")
    press(page, "Answer again", ".turn:nth-of-type(2)")
    settle(page)
    assert texts(page) == ["Name one", "Pear"]
    assert page.text(f"{LAST_TURN} .acts").startswith("2 / 2")
    press(page, "Version before")
    assert texts(page) == ["Name one", "Apple", "And?", "More"]
    press(page, "Edit message", ".turn:nth-of-type(3)")
    page.type(" Really")
    page.press("Escape")
    assert texts(page)[2] == "And?"
    press(page, "Edit message", ".turn:nth-of-type(3)")
    page.type(" Really")
    page.press("Enter")
    settle(page)
    assert texts(page) == ["Name one", "Apple", "And? Really", "You said: And? Really"]
    assert [message["content"] for message in server.asked[-1]["messages"]] == ["Name one", "Apple", "And? Really"]
    press(page, "Version before", ".turn:nth-of-type(3)")
    assert texts(page)[2:] == ["And?", "More"]


def test_the_calculators_work_is_shown_and_sent_back(serve, visit) -> None:
    server = serve({"How much?": CALCULATION})
    page = visit(server.address)
    send(page, "How much?")
    assert texts(page)[1] == "It costs 12*(3+4) = 84 coins."
    assert page.js("document.querySelectorAll('.turn p').length") == 1
    press(page, "Copy message")
    assert clipboard(page) == "It costs 12*(3+4) = 84 coins."
    send(page, "And?")
    parts = [("text", "It costs "), ("python", "12*(3+4)"), ("python_output", "84"), ("text", " coins.")]
    sent = [{"type": kind, "text": text} for kind, text in parts]
    assert server.asked[-1]["messages"][1] == {"role": "assistant", "content": sent}


def test_nothing_becomes_html(serve, visit) -> None:
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
    send(page, EVIL)
    assert page.text(".system") == f"System: {EVIL}"
    assert page.text("#list .open") == page.js("document.title").removesuffix(" · nanochat") == EVIL[:80]
    assert texts(page)[0] == EVIL
    assert texts(page)[1].count(EVIL) == 4
    links = "[...document.querySelectorAll('.body a')].map(a => [a.innerText, a.href, a.rel, a.target])"
    assert page.js(links) == [["two", "https://example.org/?a=1&b=2", "noopener noreferrer", "_blank"]]
    send(page, "tool")
    assert EVIL in page.text(".tool")
    send(page, "flood")
    assert len(page.js(f"document.querySelector('{LAST_TURN} .body').textContent")) > 9000
    send(page, "error")
    assert EVIL in page.text(".trouble")
    page.goto(page.js("location.href"))  # from what the browser keeps
    assert texts(page)[0] == EVIL
    assert page.js("typeof harmed") == "undefined"
    assert page.js("document.querySelectorAll('script, img, iframe, svg[onload]').length") == 1


TROUBLES = {
    "busy": (429, {"Retry-After": "1"}, {}, "The server is busy with other conversations.", "Retry in 1 s"),
    "closing": (503, {}, {}, "The server is starting or shutting down.", "Retry"),
    "odd": (400, {}, {"message": "that is odd"}, "The server refused: that is odd", "Retry"),
    "much": (400, {}, {"code": "context_length_exceeded"}, "Start a new one.", "New conversation"),
}


def test_errors_are_shown_and_can_be_retried(serve, visit) -> None:
    refused = {name: [[about[:3]], ["Now it works."]] for name, about in TROUBLES.items()}
    page = visit(serve({**refused, "broken": [["This much came", CUT], ["All of it came."]]}).address)
    for name, (*_, sentence, act) in TROUBLES.items():
        send(page, name)
        assert page.text(".trouble span").endswith(sentence)
        assert page.text(".trouble button") == act
        assert page.js("document.querySelector('.trouble span').role") == "alert"
        page.wait("!document.querySelector('.trouble button').disabled")
        page.click(".trouble button")
        settle(page)
        assert texts(page)[-1:] == (["Now it works."] if act.startswith("Retry") else [])
    send(page, "broken")
    assert texts(page)[-1] == "This much came"
    assert page.text(f"{LAST_TURN} .end") == "The connection broke before the answer was complete."
    page.click(f"{LAST_TURN} .acts .button")
    settle(page)
    assert texts(page)[-1] == "All of it came."


def test_a_key_is_requested_until_it_is_right(serve, visit) -> None:
    page = visit(serve(key="sécret—한").address)
    page.wait("document.querySelector('#lock').open")
    page.type("wrong")
    page.press("Enter")
    page.wait("document.querySelector('#lock-note').innerText === 'This key was not accepted.'")
    page.press("Escape")
    page.wait("document.querySelector('#toast').innerText.includes('needs a key')")
    send(page, "Hello", wait=False)
    page.wait("document.querySelector('#lock').open")
    page.type("sécret—한")
    page.press("Enter")
    settle(page)
    assert texts(page) == ["Hello", "You said: Hello"]
    assert page.js("[...Object.values(localStorage)].join().includes('cret—')") is False


def test_with_the_real_server(visit, tmp_path) -> None:
    write_model(tmp_path, endless=True, max_seq_len=4096)
    with serving(tmp_path) as server:
        page = visit(f"{server.url}/")
        page.wait("document.querySelector('#model').value === 'nanochat-mine-sft'")
        page.click("#tune")
        page.click("#settings [type=range]")
        page.press("Home")  # the likeliest tokens: what it says is known
        page.press("Escape")
        send(page, "Hello", wait=False)
        page.wait("document.querySelector('.live .body')?.innerText.length > 20")
        page.press("Escape")
        settle(page)
        assert page.text(f"{LAST_TURN} .end") == "Stopped."
        assert server.becomes_idle()
        page.click("#tune")
        page.click("#settings [name=max_tokens]")
        page.type("5")
        page.press("Enter")
        send(page, "the quick brown fox")
        assert page.text(f"{LAST_TURN} .end") == "The answer reached the token limit."
        send(page, "dog " * 4500)
        assert page.text(".trouble").endswith("Start a new one.\nNew conversation")
        page.click(".trouble button")
        assert page.text(".hello h2") == "Talk to nanochat-mine-sft"


def test_conversations_are_stored_renamed_and_deleted_and_the_theme_is_stored(serve, visit) -> None:
    page = visit(serve().address, 1200, 800, "dark")
    titles = "[...document.querySelectorAll('#list .open')].map(row => row.innerText)"
    send(page, "First")
    page.click("#side .new")
    send(page, "Second")
    page.goto(page.js("location.href"))
    assert texts(page) == ["Second", "You said: Second"]
    assert page.js(titles) == ["Second", "First"]
    press(page, "Rename conversation", "#list .now")
    page.type("Renamed")  # over the old title, which is selected
    page.press("Enter")
    assert page.js(titles) == ["Renamed", "First"]
    assert page.js("document.activeElement.title") == "Renamed"
    page.click('#list [title="First"]')
    assert texts(page) == ["First", "You said: First"]
    page.js("history.back()")
    page.wait("document.title.startsWith('Renamed')")
    assert texts(page) == ["Second", "You said: Second"]
    press(page, "Delete conversation", "#list .now")
    assert page.js(titles) == ["First"]
    page.click("#toast button")
    assert page.js(titles) == ["Renamed", "First"]
    press(page, "Delete conversation", "#list .now")
    page.goto(page.js("location.href"))
    assert page.js(titles) == ["First"]
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    assert page.js(shade) < 50
    page.click("#theme")
    assert page.js(shade) > 200
    page.goto(page.js("location.href"))
    assert page.js(shade) > 200


def test_a_title_that_is_not_finished(serve, visit) -> None:
    more = threading.Event()
    page = visit(serve({"First": ["One", more, " two"]}).address)
    titles = "[...document.querySelectorAll('#list .open')].map(row => row.innerText)"
    send(page, "First", wait=False)
    page.wait("document.querySelector('.live .body')?.innerText === 'One'")
    press(page, "Rename conversation", "#list .now")
    page.type("Else")
    more.set()
    settle(page)  # the answer ends, and the field stays
    assert page.js("document.activeElement.value") == "Else"
    page.press("Escape")
    assert page.js(titles) == ["First"]
    press(page, "Rename conversation", "#list .now")
    page.js("document.activeElement.value = '  '")
    page.press("Enter")
    assert page.js(titles) == ["First"]  # a conversation has a title
    page.click("#side .new")
    send(page, "Second")
    press(page, "Rename conversation", "#list .now")
    page.type("<b>Other</b>")
    page.click('#list [title="First"]')  # leaves the field, and opens the other conversation
    assert page.js(titles) == ["<b>Other</b>", "First"]
    assert texts(page) == ["First", "One two"]
    page.goto(page.js("location.href"))
    assert page.js(titles) == ["<b>Other</b>", "First"]


def test_one_of_several_models_is_chosen_and_remembered(serve, visit) -> None:
    server = serve(models=["small", "large"])
    page = visit(server.address)
    page.wait("document.querySelector('#model').value === 'small' && !document.querySelector('#model').disabled")
    assert page.text(".hello h2") == "Talk to small"
    page.js("document.querySelector('#model').focus()")
    page.press("ArrowDown")
    page.wait("document.querySelector('.hello h2').innerText === 'Talk to large'")
    send(page, "Hi")
    page.goto(server.address)
    page.wait("document.querySelector('#model').value === 'large'")
    send(page, "Hi again")
    assert [one["model"] for one in server.asked] == ["large", "large"]
    server.models = ["tiny"]  # another server has this address now
    page.goto(server.address)
    page.wait("document.querySelector('#model').value === 'tiny'")
    assert page.js("document.querySelector('#model').disabled")
    send(page, "Hello")
    assert server.asked[-1]["model"] == "tiny"


FORBID = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });"
FILL = "for (let n = 1 << 23; n; n >>= 1) try { localStorage['x' + n] = 'x'.repeat(n); } catch {}"


@pytest.mark.parametrize("before", [FORBID, FILL])
def test_the_page_works_without_storage(serve, visit, before) -> None:
    page = visit(serve().address, before=before)
    send(page, "Hello")
    assert "storage is full or forbidden" in page.text("#toast")
    send(page, "Again")
    page.click("#theme")
    assert texts(page) == ["Hello", "You said: Hello", "Again", "You said: Again"]
    page.click("#side .new")
    page.click('#list [title="Hello"]')
    assert len(texts(page)) == 4


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (390, "dark")])
def test_on_a_phone_nothing_is_wider_than_the_screen(serve, visit, width, scheme) -> None:
    answers = {"Tell me": [MARKDOWN], "sum": [*CALCULATION, "x" * 300], "busy": [(429, {"Retry-After": "9"}, {})]}
    page = visit(serve(answers, models=["m" * 60]).address, width, 700, scheme)
    page.wait("document.querySelector('#model').value")
    for text in ("Tell me", "sum", "x" * 200, "busy"):
        send(page, text)
        out = f"e => e.getBoundingClientRect().right > {width} + .5 && !e.closest('pre, .unseen')"
        assert page.js(f"[...document.querySelectorAll('#page *')].filter({out}).map(e => e.outerHTML)") == []
        assert page.js("[root, $('#scroll')].map(e => e.scrollWidth - e.clientWidth)") == [0, 0]
    assert page.js("document.querySelector('pre').scrollWidth > document.querySelector('pre').clientWidth")
    page.click("#menu")
    page.click("#close")
    page.click("#tune")
    assert page.js("document.querySelector('dialog[open]').getBoundingClientRect().right") <= width
    page.press("Escape")
    page.click("#bar .new")
    assert texts(page) == []


def test_the_keyboard_is_enough(serve, visit) -> None:
    server = serve({"Hi\nyou": [["Yes"], ["No"]]})
    page = visit(server.address)
    page.wait("document.querySelector('#model').value")
    page.type("Hi")
    page.press("Enter", shift=True)
    page.type("you")
    page.press("Enter")
    settle(page)
    assert texts(page) == ["Hi\nyou", "Yes"]
    here = "document.activeElement"
    page.js(f"{here}.blur()")
    while page.js(f"{here}.title") != "Answer again":
        page.press("Tab")
    page.press("Enter")
    settle(page)
    assert texts(page) == ["Hi\nyou", "No"]
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]]
    assert ("log", "Hi") in roles
    assert [name for role, name in roles if role in ("button", "textbox", "combobox") and not name] == []


def test_the_page_scrolls_only_if_the_reader_is_at_the_end(serve, visit) -> None:
    more = threading.Event()
    lines = "\n\n".join(f"Line {n}" for n in range(60))
    page = visit(serve({"Go": [lines, more, lines]}).address)
    send(page, "Go", wait=False)
    scroll = "document.querySelector('#scroll')"
    left = f"({scroll}.scrollHeight - {scroll}.scrollTop - {scroll}.clientHeight)"
    page.wait(f"document.querySelectorAll('.body p').length === 60 && {left} < 2")
    page.js(f"{scroll}.scrollTop = 100")
    page.wait("!document.querySelector('#down').hidden")
    more.set()
    settle(page)
    assert page.js(f"{scroll}.scrollTop") == 100
    page.click("#down")
    page.wait(f"{left} < 2")
