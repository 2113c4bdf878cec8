"""Brute-force calibration figures in float64 and exact fractions, written from the specification alone."""

from fractions import Fraction
from itertools import pairwise

import numpy as np


def top_label(p, y):
    """Confidence and correctness of a binary map."""
    p, y = np.asarray(p, float).ravel(), np.asarray(y).ravel()
    return np.maximum(p, 1 - p), ((p > 0.5) == (y == 1)).astype(float)


def equal_width_groups(c, bins):
    index = np.minimum(np.floor(c * bins), bins - 1).astype(int)
    return [np.flatnonzero(index == b) for b in range(bins)]


def figures(groups, c, a):
    n = len(c)
    gaps = [(len(g) / n, c[g].mean(), a[g].mean()) for g in groups if len(g)]
    return {
        "ece": sum(w * abs(C - A) for w, C, A in gaps),
        "oe": sum(w * max(C - A, 0) for w, C, A in gaps),
        "oe_weighted": sum(w * C * max(C - A, 0) for w, C, A in gaps),
        "ue": sum(w * max(A - C, 0) for w, C, A in gaps),
        "mce": max(abs(C - A) for _, C, A in gaps),
    }


def equal_width(c, a, bins):
    return figures(equal_width_groups(c, bins), c, a)


def tie_averaged(c, a):
    """Sort by confidence; every member of a tied group gets the group's mean outcome, as an exact fraction."""
    order = np.argsort(c, kind="stable")
    c, a = c[order], a[order]
    mean = {v: Fraction(int(a[c == v].sum()), int((c == v).sum())) for v in np.unique(c)}
    return c, [mean[v] for v in c]


def mass_groups(n, bins):
    bins = min(bins, n)
    size, extra = divmod(n, bins)
    start, groups = 0, []
    for b in range(bins):
        stop = start + size + (b < extra)
        groups.append(np.arange(start, stop))
        start = stop
    return groups


def equal_mass(c, a, bins):
    c, exact = tie_averaged(c, a)
    return figures(mass_groups(len(c), bins), c, np.array([float(v) for v in exact]))


def sweep(c, a):
    c, exact = tie_averaged(c, a)
    best = 1
    for bins in range(2, min(100, len(c)) + 1):
        accuracy = [sum((exact[i] for i in g), Fraction(0)) / len(g) for g in mass_groups(len(c), bins)]
        if any(later < earlier for earlier, later in pairwise(accuracy)):
            break
        best = bins
    return best, figures(mass_groups(len(c), best), c, np.array([float(v) for v in exact]))


def debias(c, a, bins):
    total = 0.0
    for g in equal_width_groups(c, bins):
        if len(g):
            C, A = c[g].mean(), a[g].mean()
            total += len(g) / len(c) * ((C - A) ** 2 - (A * (1 - A) / (len(g) - 1) if len(g) > 1 else 0.0))
    return total


def aurc(c, a):
    c, exact = tie_averaged(c, a)
    errors = np.array([float(1 - v) for v in exact])[::-1]
    return (np.cumsum(errors) / np.arange(1, len(c) + 1)).mean()


def classwise(p, hit, bins):
    """Equal-width class-wise error of one class."""
    return figures(equal_width_groups(p, bins), p, hit)["ece"]


def adaptive(p, hit, bins):
    v, exact = tie_averaged(p, hit)
    h = np.array([float(x) for x in exact])
    return float(np.mean([abs(v[g].mean() - h[g].mean()) for g in mass_groups(len(v), bins)]))
