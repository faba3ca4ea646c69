"""Actions on the chat page, and answers for a scripted server."""

from browsers import Page

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
CALCULATION = [
    {"content": "It costs ", "parts": [{"type": "text", "text": "It costs "}, {"type": "python", "text": "12*(3"}]},
    {"content": "", "parts": [{"type": "python", "text": "+4)"}, {"type": "python_output", "text": "84"}]},
    " coins.",
]
LAST_TURN = ".turn:last-of-type"


def send(page: Page, text: str, wait: bool = True) -> None:
    page.click("#text")
    page.type(text)
    page.press("Enter")
    if wait:
        settle(page)


def settle(page: Page) -> None:
    page.wait("!document.querySelector('#log[data-live]')")


def texts(page: Page) -> list[str]:
    return page.js("[...document.querySelectorAll('.turn .body')].map(body => body.innerText)")


def press(page: Page, title: str, within: str = LAST_TURN) -> None:
    page.click(f'{within} [title="{title}"]')


def clipboard(page: Page) -> str:
    page.wait("document.querySelector('#toast').innerText.includes('Copied')")
    return page.js("navigator.clipboard.readText()")
