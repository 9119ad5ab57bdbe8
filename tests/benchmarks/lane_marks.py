"""What the lanes are measured against: shares of a bare socket's rate, and multiples of a bare call's time."""

from __future__ import annotations

# At least so much of a bare socket's rate, by lane, what moves, and the way it goes.
TARGETS: dict[tuple[str, str, str], float] = {
    ("stream", "image", "down"): 0.55,
    ("stream", "image gradient", "up"): 0.55,
    ("stream", "gradients", "down"): 0.65,
    ("shared", "image", "down"): 2.5,
    ("shared", "image gradient", "up"): 2.5,
    ("shared", "gradients", "down"): 2.5,
}
# A small call may take so many times as long as a bare one, its kernel apart.
SMALL = 1.5
