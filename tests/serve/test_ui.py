"""The chat page in a real browser: what is said there, what becomes of it, and what goes wrong."""

import threading

from scripted import CUT
from served import serving, write_model
from talks import LAST, SUM, WORDS, clipboard, idle, press, said, say

EVIL = '<img src=x onerror="harmed = 1"><script>harmed = 1</script></textarea><svg onload=harmed=1>&lt;b&gt;'
LINKS = (
    "[one](javascript:harmed=1) [two](https://example.org/?a=1&b=2) [three](data:text/html,<script>harmed=1</script>)"
)


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
    assert page.js("[document.querySelector('#send').title, document.querySelector('#announcement').innerText]") == [
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
    assert page.js("document.querySelector('#announcement').textContent") == WORDS
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
    "closing": (503, {}, {}, "The server is starting or shutting down.", "Retry"),
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
    page = visit(serve(key="sécret—한").address)
    page.wait("document.querySelector('#lock').open")
    page.type("wrong")
    page.press("Enter")
    page.wait("document.querySelector('#lock-note').innerText === 'This key was not accepted.'")
    page.shot(tmp_path / "key.png")
    page.press("Escape")
    page.wait("document.querySelector('#toast').innerText.includes('needs a key')")
    say(page, "Hello", wait=False)
    page.wait("document.querySelector('#lock').open")
    page.type("sécret—한")
    page.press("Enter")
    idle(page)
    assert said(page) == ["Hello", "You said: Hello"]
    assert page.js("[...Object.values(localStorage)].join().includes('cret—')") is False


def test_with_the_real_server(visit, tmp_path):
    write_model(tmp_path, endless=True, max_seq_len=4096)
    with serving(tmp_path) as server:
        page = visit(f"{server.url}/")
        page.wait("document.querySelector('#model').value === 'nanochat-mine-base'")
        page.click("#tune")
        page.click("#settings [type=range]")
        page.press("Home")  # the likeliest tokens: what it says is known
        page.press("Escape")
        say(page, "Hello", wait=False)
        page.wait("document.querySelector('.live .body')?.innerText.length > 20")
        page.shot(tmp_path / "streaming.png")
        page.press("Escape")
        idle(page)
        assert page.text(f"{LAST} .end") == "Stopped."
        assert server.becomes_idle()
        page.click("#tune")
        page.click("#settings [name=max_tokens]")
        page.type("5")
        page.press("Enter")
        say(page, "the quick brown fox")
        assert page.text(f"{LAST} .end") == "The answer reached the token limit."
        one = said(page)[-1]
        press(page, "Answer again")
        idle(page)
        assert page.text(f"{LAST} .acts").startswith("2 / 2")
        assert said(page)[-1] == one
        press(page, "Version before")
        assert page.text(f"{LAST} .acts").startswith("1 / 2")
        say(page, "dog " * 4500)
        assert page.text(".trouble").endswith("Start a new one.\nNew conversation")
        page.click(".trouble button")
        assert page.text(".hello h2") == "Talk to nanochat-mine-base"
