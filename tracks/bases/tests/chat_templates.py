"""Chat templates for tests, each with some of what templates of public models do, and conversations for them."""

import random

import transformers

from tracks.bases.tests.public_models import CHATML, TEXT, tokenizer_for

# Each writes some of what templates of public models do. STRIPPED strips contents, THINKING drops thoughts of earlier
# answers, MARKED says itself what the assistant writes, TOOLS lists tools as JSON and takes several roles.
STRIPPED = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message.role + '\n' + message.content | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>assistant\n' }}{% endif %}"
)
THINKING = (
    "{% for message in messages %}{% set content = message.content %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)
MARKED = (
    "{%- for message in messages -%}\n"
    "    {%- if message.role == 'assistant' -%}\n"
    "        {{- '<|im_start|>assistant\n' -}}\n"
    "        {%- generation %}{{- message.content + '<|im_end|>' -}}{% endgeneration %}\n"
    "    {%- else -%}\n"
    "        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}\n"
    "    {%- endif -%}\n"
    "{%- endfor -%}\n"
)
TOOLS = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}" + CHATML
)
# As Qwen3 writes: thoughts of the last answer stay, an empty thought is put before a last answer that has none.
KEEPING = (
    "{% for message in messages %}{% set content = message.content %}{% set thought = '' %}"
    "{% if message.role == 'assistant' and '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and loop.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{ content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Llama 2 writes: a blank before the end.
SPACED = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ '<bos>[INST] ' + message.content | trim + ' [/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content | trim + ' <|im_end|>' }}{% endif %}{% endfor %}"
)
# As Qwen2.5 writes: calls in tags behind the content, results of tools as turns of the user.
CALLING = (
    "{%- if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>' + message.content + '</tool_response>' }}"
    "{%- else %}{{ '<|im_start|>' + message.role + '\n' }}{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
    "{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LISTED = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role + ':' + (m.content or '') }}"
    "{% if m.tool_calls %}{{ '[CALLS] [' }}{% for c in m.tool_calls %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}{% endfor %}{{ ']' }}{% endif %}"
    "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "stripped": STRIPPED,
    "thinking": THINKING,
    "marked": MARKED,
    "tools": TOOLS,
    "keeping": KEEPING,
    "spaced": SPACED,
}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds <two> & 'more' — 더하기", "parameters": {}},
}


def conversations(count: int) -> list[list[dict[str, str]]]:
    dice = random.Random(9)
    words = [
        *" ".join(TEXT).split(" "),
        "\n",
        " ",
        "\n\n",
        "👩‍💻",
        "{{ 1 }}",
        "{% x %}",
        "</b>",
        "",
        "<think>a</think>\n\nb",
    ]
    found = []
    for _ in range(count):
        turns = dice.randrange(1, 4)
        roles = ["system"] * dice.randrange(2) + ["user", "assistant"] * turns
        found.append([{"role": role, "content": " ".join(dice.choices(words, k=dice.randrange(8)))} for role in roles])
    return found


def theirs_with(source: str, case: str = "llama") -> transformers.PreTrainedTokenizerFast:
    special = {"bos_token": "<bos>", "eos_token": "<|im_end|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer_for(case), chat_template=source, **special)
