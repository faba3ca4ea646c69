"""The code that exports bring along computes what gpt.py does: at once, through a cache, padded, and in training."""

import pytest
import torch
from models import BOS, CONFIGS, SMALL, lively, tokens
from torch.nn.utils.rnn import pad_sequence

from nanochat.models import config_fields
from tracks.export.tests.exports import through_folder

RECURSIVE = {**SMALL, "depth": 2, "supervision": 3}
OTHERS = {
    "golf": SMALL | config_fields("golf"),
    "recursive": RECURSIVE,
    "recursive passes": {**RECURSIVE, "loops": 1, "passes": 2, "detached": 1, "value_embeds": False},
}
NAMES = ("reference", "induction", "golf", "recursive", "recursive passes", "odd shapes")
NEW = 8  # tokens to generate


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    """A lively model, and the same one loaded from its folder."""
    model = lively((CONFIGS | OTHERS)[request.param])
    return model, through_folder(model, tmp_path_factory.mktemp("own"))


def padded(rows: list[torch.Tensor]):
    """Ids and mask of rows padded on the left, with an ordinary token."""
    both = (rows, 7), ([torch.ones_like(row) for row in rows], 0)
    return [pad_sequence(some, batch_first=True, padding_value=pad, padding_side="left") for some, pad in both]


@torch.inference_mode()
def test_logits_at_once_in_pieces_and_padded(pair) -> None:
    ours, theirs = pair
    ids = tokens()
    expected = ours(ids)
    torch.testing.assert_close(theirs(ids).logits, expected, atol=1e-5, rtol=0)
    batch, mask = padded([ids[0], ids[1, 9:146]])  # row 1 begins within a document, at 63
    cache, parts = None, []
    for begin, end in ((0, 30), (30, 64), (64, 65), (65, 160), (160, 200)):
        found = theirs(batch[:, begin:end], mask[:, :end], past_key_values=cache, use_cache=True)
        cache = found.past_key_values
        parts.append(found.logits)
    first, second = torch.cat(parts, 1)
    torch.testing.assert_close(first, expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(second[63:], ours(ids[1:, 9:146])[0], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_generation_alone_in_padded_batches_and_with_beams(pair) -> None:
    ours, theirs = pair
    prompts = [row[:length] for row, length in zip(tokens(rows=3), (150, 97, 131), strict=True)]  # the window is 129
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 7}
    expected = []
    for prompt in prompts:
        ids = prompt[None]
        for _ in range(NEW):  # the plain twin: the whole row again
            ids = torch.cat([ids, ours(ids)[:, -1:].argmax(-1)], 1)
        expected.append(ids[0, -NEW:].tolist())
        assert torch.equal(theirs.generate(prompt[None], attention_mask=torch.ones(1, len(prompt)), **settings), ids)
    ids, mask = padded(prompts)
    assert theirs.generate(ids, attention_mask=mask, **settings)[:, -NEW:].tolist() == expected
    beams = [theirs.generate(ids, attention_mask=mask, num_beams=3, use_cache=on, **settings) for on in (True, False)]
    assert torch.equal(*beams)


def test_a_training_step_has_the_same_loss_and_gradients(pair) -> None:
    ours, theirs = pair
    labels = tokens().masked_fill(torch.arange(200) < 40, -100)
    targets = labels[:, 1:].clamp(min=-1)
    expected = ours(tokens()[:, :-1], targets) / (targets >= 0).sum()
    loss = theirs(tokens(), labels=labels).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    if getattr(ours.config, "passes", 1) == 1:  # earlier passes have a gradient there, and none here
        expected.backward()
        loss.backward()
        for name, weight in theirs.named_parameters():
            torch.testing.assert_close(weight.grad, ours.get_parameter(name).grad, atol=1e-5, rtol=1e-4, msg=name)


@torch.inference_mode()
def test_half_precision_keeps_the_lambdas(tmp_path) -> None:
    ours = lively(CONFIGS["reference"])
    theirs = through_folder(ours, tmp_path, dtype=torch.bfloat16)
    assert (theirs.head.weight.dtype, theirs.x0_lambdas.dtype) == (torch.bfloat16, torch.float32)
    ours.compute_dtype = torch.bfloat16
    torch.testing.assert_close(theirs(tokens()).logits, ours(tokens()), atol=0.05, rtol=0)
    with pytest.raises(ValueError, match=r"a row has 513 tokens, and the model's context is 512"):
        theirs(torch.full((1, 513), BOS))
