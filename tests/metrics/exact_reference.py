"""Brute-force calibration figures in fractions, for pixels that are given by value and number."""

from fractions import Fraction
from itertools import pairwise

import mpmath


def merge(atoms):
    """Sort atoms (value, pixels, pixels with outcome 1) and add up those of equal value."""
    merged = {}
    for value, n, hits in atoms:
        old = merged.get(value, (0, 0))
        merged[value] = (old[0] + n, old[1] + hits)
    return [(value, *merged[value]) for value in sorted(merged)]


def equal_width(atoms, bins):
    """Return (pixels, sum of values, hits) of every non-empty bin; ``atoms`` bring the index of their bin."""
    sums = [[0, Fraction(0), 0] for _ in range(bins)]
    for index, value, n, hits in atoms:
        sums[index][0] += n
        sums[index][1] += value * n
        sums[index][2] += hits
    return [tuple(s) for s in sums if s[0]]


def equal_mass(atoms, bins):
    total = sum(n for _, n, _ in atoms)
    size, extra = divmod(total, min(bins, total))
    edges = [0]
    for b in range(min(bins, total)):
        edges.append(edges[-1] + size + (b < extra))

    def sums_up_to(edge):
        value = hits = Fraction(0)
        position = 0
        for v, n, h in atoms:
            part = min(max(edge - position, 0), n)
            value, hits, position = value + v * part, hits + Fraction(h * part, n), position + n
        return edge, value, hits

    return [tuple(b - a for a, b in zip(low, high, strict=True)) for low, high in pairwise(map(sums_up_to, edges))]


def gaps(sums):
    total = sum(n for n, _, _ in sums)
    return [(Fraction(n) / total, value / n, Fraction(hits) / n, n) for n, value, hits in sums]


def figures(sums):
    parts = gaps(sums)
    return {
        "ece": sum(w * abs(c - a) for w, c, a, _ in parts),
        "oe": sum(w * max(c - a, 0) for w, c, a, _ in parts),
        "oe_weighted": sum(w * c * max(c - a, 0) for w, c, a, _ in parts),
        "ue": sum(w * max(a - c, 0) for w, c, a, _ in parts),
        "mce": max(abs(c - a) for _, c, a, _ in parts),
        "debias": sum(w * ((c - a) ** 2 - (a * (1 - a) / (n - 1) if n > 1 else 0)) for w, c, a, n in parts),
    }


def sweep(atoms):
    best = equal_mass(atoms, 1)
    for bins in range(2, min(100, sum(n for _, n, _ in atoms)) + 1):
        sums = equal_mass(atoms, bins)
        accuracy = [a for _, _, a, _ in gaps(sums)]
        if any(later < earlier for earlier, later in pairwise(accuracy)):
            break
        best = sums
    return best


def adaptive(atoms, bins):
    """Return the mean gap of equal-mass bins."""
    parts = gaps(equal_mass(atoms, bins))
    return sum(abs(c - a) for _, c, a, _ in parts) / len(parts)


def error_auroc(atoms):
    above = sum(h for _, _, h in atoms)
    right, wrong = above, sum(n - h for _, n, h in atoms)
    score = Fraction(0)
    for _, n, h in atoms:
        above -= h
        score += (n - h) * (above + Fraction(h, 2))
    return score / (right * wrong)


def aurc(atoms):
    """Return the mean error among the k most confident pixels; ties share their errors, in 60 digits."""
    with mpmath.workdps(60):
        total, seen, errors = mpmath.mpf(0), 0, 0
        for _, n, h in reversed(atoms):
            rate = mpmath.mpf(n - h) / n
            harmonic = mpmath.digamma(seen + n + 1) - mpmath.digamma(seen + 1)
            total += rate * n + (errors - rate * seen) * harmonic
            seen, errors = seen + n, errors + n - h
        return float(total / seen)
