"""A reference of the choice of a sweep's samples, for many half segments at once, level by level."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Clearances within this distance of a limit, in metres, may fall on either side of it.
MARGIN = 2e-6
# Factor on the balls around a point, so that neighbouring balls overlap.
OVERLAP = 1.000004


def samples_of(
    half: Tensor,
    clearance: Tensor,
    inflated: Tensor,
    samples: int,
    clearance_at: Callable[[Tensor, Tensor], Tensor],
    margin: float = MARGIN,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Chooses the samples of K half segments of lengths `half`, from a centre to the middle of its segment.

    The middle is sampled unless the free ball around the centre, of radius `clearance`, reaches it. Then each
    interval between neighbouring samples is halved until it is covered: where both ends are free, by the two balls
    around them, which overlap where the inflated radius is 0; where one is in contact, if it is no longer than the
    inflated radius. No interval is shorter than half / samples.

    Args:
        half, clearance, inflated: [K].
        samples: A power of two.
        clearance_at: Clearances of segments [M] (indices into K) at fractions [M] of the way to the neighbour.
        margin: Decisions nearer to a limit than this depend on rounding.

    Returns:
        Segments [M] and fractions [M] of the samples besides the centre, whether each segment used up its samples
        without a contact before it was shown to be free [K], and whether no decision on it depends on rounding [K].
    """
    overlap = torch.where(inflated > 0, 1.0, OVERLAP).to(half.dtype)
    chosen = torch.nonzero((half > 0) & (clearance < half * overlap)).flatten()
    clear = (clearance - half).abs() > margin
    exhausted, touched = torch.zeros_like(clear), clearance < 0
    found_segments, found_fractions = [chosen], [torch.full((len(chosen),), 0.5, dtype=half.dtype)]
    # Intervals: segment, left end (of the half segment), clearances of both ends.
    left = torch.zeros(len(chosen), dtype=half.dtype)
    at_left, at_right = clearance[chosen], clearance_at(chosen, found_fractions[0])
    share = 1.0
    while len(chosen):
        touched[chosen[torch.minimum(at_left, at_right) < 0]] = True
        gap = half[chosen] * share
        free = (at_left >= 0) & (at_right >= 0)
        covered = torch.where(free, gap * overlap[chosen] <= at_left + at_right, gap <= inflated[chosen])
        limit = torch.where(free, at_left + at_right, inflated[chosen])
        vague = ((gap - limit).abs() < margin) | (torch.minimum(at_left.abs(), at_right.abs()) < margin)
        clear[chosen[vague]] = False
        if share * samples <= 1:
            exhausted[chosen[~covered & free]] = True
            break
        chosen, left, at_left, at_right = (values[~covered] for values in (chosen, left, at_left, at_right))
        share /= 2
        middle = left + share
        at_middle = clearance_at(chosen, middle / 2)
        found_segments.append(chosen)
        found_fractions.append(middle / 2)
        left = torch.cat([left, middle])
        at_left, at_right = torch.cat([at_left, at_middle]), torch.cat([at_middle, at_right])
        chosen = torch.cat([chosen, chosen])
    return torch.cat(found_segments), torch.cat(found_fractions), exhausted & ~touched, clear
