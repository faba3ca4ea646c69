"""The recursive model by its formulas."""

import torch.nn.functional as F


def rms(x):
    return F.rms_norm(x, x.shape[-1:], eps=2**-23)


def written_out(model, ids):
    """The logits at each exit, by the formulas in tracks/recursion/model.py."""
    config, context = model.config, model.context(ids)
    scale = (config.depth * config.supervision * config.passes * (config.loops + 1)) ** -config.residual_power
    layers = list(zip(model.blocks, model.layers(context), strict=True))
    x = y = context.x0
    z, found = 0 * x, []
    for step in range(config.supervision):
        for number in range(config.passes):
            y, z = (y, z) if number == 0 else (y.detach(), z.detach())
            for i, (block, layer) in enumerate(layers):
                for _ in range(config.loops):
                    z = z + scale * block(rms(x + y + z), layer)
                y = y + scale * block(rms(y + z), layer)
                if i == config.depth // 2:
                    middle = y
        found.append(model.logits(rms(y - model.backout_lambda * middle)))
        if step < config.detached:
            y, z = y.detach(), z.detach()
    return found


def exit_written_out(model, ids, states):
    """y, z and the logits after one supervision step of a model with one pass; states: y and z before, or None."""
    config, context = model.config, model.context(ids)
    layers = list(zip(model.blocks, model.layers(context), strict=True))
    x = context.x0
    y, z = states or (x, 0 * x)
    for i, (block, layer) in enumerate(layers):
        for _ in range(config.loops):
            z = z + block(rms(x + y + z), layer)
        y = y + block(rms(y + z), layer)
        if i == config.depth // 2:
            middle = y
    return y, z, model.logits(rms(y - model.backout_lambda * middle))
