/* Passes over the classes of a block of pixels, for one type: _class_order.c includes this file twice.
 *
 * TYPE is float or double, and NAME(x) a name of its own for each. Rows of probabilities, one per class, are `stride`
 * values apart.
 */

/* What is kept of the classes that were seen so far: the largest probabilities, or 0; the smallest, or 0; sums. */
typedef struct {
    TYPE top[MAX_TOPS][BLOCK], least[BLOCK], sum[BLOCK];
    double squares[BLOCK];
} NAME(seen);

/* The same of one pixel. */
typedef struct {
    TYPE first, second, third, fourth, fifth, least, sum;
} NAME(pixel);

/* Put a value in the place of a smaller one, and return the smaller of the two. */
static inline TYPE NAME(lift)(TYPE value, TYPE *place) {
    TYPE more = value > *place ? value : *place, less = value > *place ? *place : value;
    *place = more;
    return less;
}

/* Take in a value. NaN comes before no other, and shows in the sum. */
static inline void NAME(take)(TYPE value, NAME(pixel) *p) {
    p->sum += value;
    p->least = value < p->least ? value : p->least;
    value = NAME(lift)(value, &p->first);
    value = NAME(lift)(value, &p->second);
    value = NAME(lift)(value, &p->third);
    value = NAME(lift)(value, &p->fourth);
    NAME(lift)(value, &p->fifth);
}

/* Take in the classes of four rows. */
WIDE static void NAME(see)(const TYPE *restrict a, const TYPE *restrict b, const TYPE *restrict c,
                           const TYPE *restrict d, int count, NAME(seen) *restrict s) {
    for (int i = 0; i < count; i++) {
        NAME(pixel) p = {s->top[0][i], s->top[1][i], s->top[2][i], s->top[3][i], s->top[4][i], s->least[i], s->sum[i]};
        NAME(take)(a[i], &p), NAME(take)(b[i], &p), NAME(take)(c[i], &p), NAME(take)(d[i], &p);
        s->top[0][i] = p.first, s->top[1][i] = p.second, s->top[2][i] = p.third, s->top[3][i] = p.fourth;
        s->top[4][i] = p.fifth, s->least[i] = p.least, s->sum[i] = p.sum;
    }
    for (int i = 0; i < count; i++) {
        double own[ROWS] = {a[i], b[i], c[i], d[i]}, sum = s->squares[i];
        for (int row = 0; row < ROWS; row++)
            sum += own[row] * own[row];
        s->squares[i] = sum;
    }
}

/* Probabilities in [0, 1], and 0 for NaN. */
WIDE static void NAME(clip)(const TYPE *values, int count, TYPE *clipped) {
    for (int i = 0; i < count; i++) {
        TYPE v = values[i] > 0 ? values[i] : 0;
        clipped[i] = v < 1 ? v : 1;
    }
}

/* Take in all classes; those that are missing from the last four rows are 0, which changes nothing. */
static void NAME(see_all)(const TYPE *values, Py_ssize_t stride, int classes, int clips, int count, NAME(seen) *s) {
    static const TYPE zeros[BLOCK] = {0};
    TYPE clipped[ROWS][BLOCK];
    memset(s, 0, sizeof *s);
    for (int k = 0; k < classes; k += ROWS) {
        const TYPE *rows[ROWS];
        for (int row = 0; row < ROWS; row++) {
            rows[row] = k + row < classes ? values + (k + row) * stride : zeros;
            if (clips) {
                NAME(clip)(rows[row], count, clipped[row]);
                rows[row] = clipped[row];
            }
        }
        NAME(see)(rows[0], rows[1], rows[2], rows[3], count, s);
    }
}

/* Whether all pixels, or those to keep, are certainly probabilities, and whether all values lie in [0, 1]. */
WIDE static int NAME(are_certain)(const NAME(seen) *s, const byte *keep, const double *slacks, int count) {
    TYPE slack = (TYPE)slacks[0];
    int bad = 0;
    for (int i = 0; i < count; i++)
        bad |= (!keep || keep[i]) & !((s->least[i] >= -slack) & (s->top[0][i] <= 1 + slack) &
                                      (s->sum[i] >= 1 - slacks[1]) & (s->sum[i] <= 1 + slacks[1]));
    return !bad;
}

WIDE static int NAME(are_within)(const NAME(seen) *s, int count) {
    int outside = 0;
    for (int i = 0; i < count; i++)
        outside |= !((s->least[i] >= 0) & (s->top[0][i] <= 1) & (s->sum[i] == s->sum[i]));
    return !outside;
}

/* How many of the largest probabilities are above that of the true class; `tied` where another may be equal to it. */
WIDE static void NAME(rank)(const NAME(seen) *s, const TYPE *truth, int count, byte *rank, byte *tied) {
    for (int i = 0; i < count; i++) {
        byte above = 0, equal = 0;
        for (int k = 0; k < MAX_TOPS; k++) {
            above += s->top[k][i] > truth[i];
            equal += s->top[k][i] == truth[i];
        }
        rank[i] = above;
        tied[i] = (equal > 1) | (s->top[MAX_TOPS - 1][i] == truth[i]);
    }
}

/* Sums of the ks[row] largest probabilities. */
WIDE static void NAME(sum_tops)(const NAME(seen) *s, const byte *ks, Py_ssize_t rows, Py_ssize_t stride, int count,
                                double *shares) {
    double mass[BLOCK] = {0};
    int k = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        for (; k < ks[row] && k < MAX_TOPS; k++)
            for (int i = 0; i < count; i++)
                mass[i] += s->top[k][i];
        memcpy(shares + row * stride, mass, count * sizeof *mass);
    }
}

/* The Brier score needs no clipping: rounded or not, squares are at least 2 truth - 1, which is exact from 0.5 on. */
WIDE static void NAME(score)(const NAME(seen) *s, const TYPE *truth, int count, double *brier, double *true_share) {
    for (int i = 0; i < count; i++) {
        brier[i] = s->squares[i] - 2.0 * truth[i] + 1.0;
        true_share[i] = truth[i];
    }
}

/* Write what rank_classes says of a block, whose arrays begin at these addresses; return whether it is certain. */
static int NAME(rank_block)(const TYPE *values, Py_ssize_t stride, int classes, const byte *labels, const byte *keep,
                            const byte *ks, Py_ssize_t rows, const double *slacks, int count, TYPE *top,
                            double *shares, byte *ranks, double *scores, Py_ssize_t pixels) {
    NAME(seen) s;
    TYPE truth[BLOCK];
    byte label[BLOCK], tied[BLOCK];
    NAME(see_all)(values, stride, classes, 0, count, &s);
    int certain = NAME(are_certain)(&s, keep, slacks, count);
    if (!NAME(are_within)(&s, count))
        NAME(see_all)(values, stride, classes, 1, count, &s);
    for (int i = 0; i < count; i++) {
        label[i] = labels[i] < classes ? labels[i] : (byte)(classes - 1);
        truth[i] = values[label[i] * stride + i];
    }
    NAME(clip)(truth, count, truth);
    memcpy(top, s.top[0], count * sizeof *top);
    NAME(sum_tops)(&s, ks, rows, pixels, count, shares);
    NAME(score)(&s, truth, count, scores, scores + pixels);
    NAME(rank)(&s, truth, count, ranks, tied);
    for (int i = 0; i < count; i++)
        if (tied[i]) {
            ranks[i] = 0;
            for (int k = 0; k < classes && ranks[i] < MAX_TOPS; k++) {
                TYPE v = values[k * stride + i];
                v = v > 0 ? v < 1 ? v : 1 : 0;
                ranks[i] += (v > truth[i]) | ((v == truth[i]) & (k < label[i]));
            }
        }
    return certain;
}

/* Let a class win over those before it; ties go to the first. */
static inline void NAME(challenge)(TYPE value, int k, TYPE *best, byte *winner) {
    *winner = value > *best ? (byte)k : *winner;
    *best = value > *best ? value : *best;
}

WIDE static void NAME(win)(const TYPE *restrict values, int k, int count, TYPE *restrict best, byte *restrict winner) {
    for (int i = 0; i < count; i++) {
        TYPE most = best[i];
        byte first = winner[i];
        NAME(challenge)(values[i], k, &most, &first);
        best[i] = most, winner[i] = first;
    }
}

/* The classes of four rows, from class k on. */
WIDE static void NAME(win_rows)(const TYPE *restrict a, const TYPE *restrict b, const TYPE *restrict c,
                                const TYPE *restrict d, int k, int count, TYPE *restrict best, byte *restrict winner) {
    for (int i = 0; i < count; i++) {
        TYPE most = best[i];
        byte first = winner[i];
        NAME(challenge)(a[i], k, &most, &first), NAME(challenge)(b[i], k + 1, &most, &first);
        NAME(challenge)(c[i], k + 2, &most, &first), NAME(challenge)(d[i], k + 3, &most, &first);
        best[i] = most, winner[i] = first;
    }
}

/* The winners of a block and their probabilities. */
static void NAME(win_block)(const TYPE *values, Py_ssize_t stride, int classes, int count, TYPE *best, byte *winner) {
    int k = 1;
    memcpy(best, values, count * sizeof *best);
    memset(winner, 0, count);
    for (; k + ROWS <= classes; k += ROWS) {
        const TYPE *row = values + k * stride;
        NAME(win_rows)(row, row + stride, row + 2 * stride, row + 3 * stride, k, count, best, winner);
    }
    for (; k < classes; k++)
        NAME(win)(values + k * stride, k, count, best, winner);
}
