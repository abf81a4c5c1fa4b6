# SPDX-License-Identifier: Apache-2.0
"""Makes tests/reference/losses.txt with PyTorch: activations and losses with their gradients, on a few numbers.

    python tests/reference/make_losses_reference.py > tests/reference/losses.txt

Lines: a name, then numbers. "x", "dy" (given), then for each activation its output and gradient; "logits", "targets"
(given), "binary_targets" (given), then for each loss its value and the gradient of the logits. Numbers are float32,
printed so that they read back exactly.
"""

import torch
import torch.nn.functional as F

ROWS, CLASSES = 5, 4
IGNORED = -100


def line(name, values):
    print(name, " ".join(f"{v:.9g}" for v in values.detach().reshape(-1).tolist()))


def main():
    generator = torch.Generator().manual_seed(20250301)
    x = (3 * torch.randn(17, generator=generator)).requires_grad_()
    with torch.no_grad():
        x[3], x[7], x[11] = 0, 9, -9
    dy = torch.randn(17, generator=generator)
    line("x", x)
    line("dy", dy)
    for name, function in (("gelu", lambda v: F.gelu(v, approximate="tanh")), ("relu", F.relu), ("silu", F.silu),
                           ("tanh", torch.tanh)):
        x.grad = None
        y = function(x)
        y.backward(dy)
        line(name, y)
        line(name + "_gradient", x.grad)

    logits = (2 * torch.randn(ROWS, CLASSES, generator=generator)).requires_grad_()
    classes = torch.tensor([2, 0, IGNORED, 3, 3])
    targets = torch.rand(ROWS, CLASSES, generator=generator)
    line("logits", logits)
    line("classes", classes)
    line("targets", targets)
    for name, loss in (("mse_loss", lambda: torch.nn.MSELoss()(logits, targets)),
                       ("bce_with_logits_loss", lambda: torch.nn.BCEWithLogitsLoss()(logits, targets)),
                       ("cross_entropy_loss", lambda: torch.nn.CrossEntropyLoss()(logits, classes))):
        logits.grad = None
        value = loss()
        value.backward()
        line(name, value)
        line(name + "_gradient", logits.grad)
    line("cross_entropy_loss_of_nothing", torch.nn.CrossEntropyLoss()(logits, torch.full((ROWS,), IGNORED)))


if __name__ == "__main__":
    main()
