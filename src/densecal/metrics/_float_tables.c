/* Passes over float probabilities: tables of counts and exact sums, the order of classes, checks.
 *
 * As in _native.c, every function has a counterpart in NumPy, named in its comment, with the same bits. Probabilities
 * are float32 or float64, contiguous; those of K classes are (K, pixels).
 */

#include "_native.h"

#include <math.h>

#define BLOCK 512           /* pixels that are prepared together, in the nearest cache */
#define SEGMENT (1 << 17)   /* pixels whose packed sums fit into 64 bits */
#define HIGH 67108864.0     /* 2^26 */
#define LOW 134217728.0     /* 2^27 */
#define MAX_TOPS 5

/* ------------------------------------------------------------------------------------------------ blocks of values */

/* What a table needs to know of a block of values: equal-width bin, the limbs of fine_bins.tally, fine bin. */
typedef struct {
    int32_t bin[BLOCK], high[BLOCK], low[BLOCK], fine[BLOCK];
} block;

/* Probabilities in [0, 1], and 0 for NaN. */
#define CLIP(TYPE, NAME)                                                                                               \
    WIDE static void clip_##NAME(const TYPE *values, int count, TYPE *clipped) {                                       \
        for (int i = 0; i < count; i++) {                                                                              \
            TYPE v = values[i] > 0 ? values[i] : 0;                                                                    \
            clipped[i] = v < 1 ? v : 1;                                                                                \
        }                                                                                                              \
    }

/* The equal-width bin as in float64, and the limbs: scaling by powers of two is exact, and so is what is left of a
 * number without its whole part. */
#define BIN(TYPE, NAME, ROUND)                                                                                         \
    WIDE static void bin_##NAME(const TYPE *values, int count, int bins, block *b) {                                   \
        for (int i = 0; i < count; i++) {                                                                              \
            int32_t bin = (int32_t)((double)values[i] * bins);                                                         \
            b->bin[i] = bin < bins ? bin : bins - 1;                                                                   \
        }                                                                                                              \
        for (int i = 0; i < count; i++) {                                                                              \
            TYPE scaled = values[i] * (TYPE)HIGH;                                                                      \
            int32_t whole = (int32_t)scaled;                                                                           \
            b->high[i] = whole;                                                                                        \
            b->low[i] = (int32_t)ROUND((scaled - (TYPE)whole) * (TYPE)LOW);                                            \
        }                                                                                                              \
    }

/* fine_bins.fine_index, from the leading bits of the distance to the nearer end, which is exact in both types. */
#define FINE(TYPE, NAME, BITS, MANTISSA, BIAS)                                                                         \
    WIDE static void fine_##NAME(const TYPE *values, int count, int steps, block *b) {                                 \
        TYPE distance[BLOCK];                                                                                          \
        BITS bits[BLOCK];                                                                                              \
        int32_t last = fine_bins(steps) - 1, lowest = (BIAS - 40) << steps;                                            \
        for (int i = 0; i < count; i++) {                                                                              \
            TYPE mirrored = 1 - values[i];                                                                             \
            distance[i] = mirrored < values[i] ? mirrored : values[i];                                                 \
        }                                                                                                              \
        memcpy(bits, distance, count * sizeof *bits);                                                                  \
        for (int i = 0; i < count; i++) {                                                                              \
            int32_t code = (int32_t)(bits[i] >> (MANTISSA - steps)) - lowest + 1;                                      \
            code = code > 0 ? code : 0;                                                                                \
            b->fine[i] = values[i] > (TYPE)0.5 ? last - code : code;                                                   \
        }                                                                                                              \
    }

static int fine_bins(int steps) { return 2 * ((39 << steps) + 2); }

CLIP(float, singles)
CLIP(double, doubles)
BIN(float, singles, rintf)
BIN(double, doubles, rint)
FINE(float, singles, uint32_t, 23, 127)
FINE(double, doubles, uint64_t, 52, 1023)

static void prepare(const Py_buffer *values, Py_ssize_t first, int count, int bins, int steps, block *b) {
    union {
        float singles[BLOCK];
        double doubles[BLOCK];
    } clipped;
    if (values->itemsize == 4) {
        clip_singles((const float *)values->buf + first, count, clipped.singles);
        bin_singles(clipped.singles, count, bins, b);
        if (steps >= 0)
            fine_singles(clipped.singles, count, steps, b);
    } else {
        clip_doubles((const double *)values->buf + first, count, clipped.doubles);
        bin_doubles(clipped.doubles, count, bins, b);
        if (steps >= 0)
            fine_doubles(clipped.doubles, count, steps, b);
    }
}

/* ------------------------------------------------------------------------------------------------ tables */

/* Pixels and sum of high limbs in one number, and the sum of low limbs. */
typedef struct {
    uint64_t pixels_high, low;
} cell;

#define ONE_PIXEL ((uint64_t)1 << 44)

/* Add a cell of an outcome to int64 counts by outcome and limbs. */
static void unpack(const cell *from, int outcome, int64_t *to) {
    to[outcome] += (int64_t)(from->pixels_high >> 44);
    to[2] += (int64_t)(from->pixels_high & (ONE_PIXEL - 1));
    to[3] += (int64_t)from->low;
}

static inline void add_pixel(cell *to, int32_t high, int32_t low) {
    to->pixels_high += ONE_PIXEL + (uint32_t)high;
    to->low += (uint32_t)low;
}

/* Count up to SEGMENT pixels by group and bin. `cells` are WAYS copies of (groups, bins, outcome), zeros before and
 * after. */
static void tally_groups(const Py_buffer *values, Py_ssize_t first, Py_ssize_t last, const byte *outcome,
                         const byte *group, int groups, int bins, cell *cells, int64_t *table) {
    block b;
    Py_ssize_t size = (Py_ssize_t)groups * bins * 2;
    for (Py_ssize_t start = first; start < last; start += BLOCK) {
        int count = last - start < BLOCK ? (int)(last - start) : BLOCK;
        prepare(values, start, count, bins, -1, &b);
        const byte *hit = outcome + start;
        if (group)
            for (int i = 0; i < count; i++) {
                int own = group[start + i];
                if (own < groups)
                    add_pixel(&cells[i % WAYS * size + 2 * (own * bins + b.bin[i]) + (hit[i] != 0)], b.high[i], b.low[i]);
            }
        else
            for (int i = 0; i < count; i++)
                add_pixel(&cells[i % WAYS * size + 2 * b.bin[i] + (hit[i] != 0)], b.high[i], b.low[i]);
    }
    for (Py_ssize_t i = 0; i < WAYS * size; i++)
        unpack(&cells[i], i % 2, table + 4 * (i % size / 2));
    memset(cells, 0, WAYS * size * sizeof *cells);
}

/* Count up to SEGMENT pixels by fine bin and by bin. Both numbers rise with the value, so that their sum tells them
 * apart: `cells` are by outcome and that sum, and `bin_of` keeps its bin. They are zeros before and after. */
static void tally_fine(const Py_buffer *values, Py_ssize_t first, Py_ssize_t last, const byte *outcome,
                       const byte *group, int bins, int steps, cell *cells, uint16_t *bin_of, int64_t *table,
                       int64_t *fine) {
    block b;
    int size = fine_bins(steps) + bins;
    for (Py_ssize_t start = first; start < last; start += BLOCK) {
        int count = last - start < BLOCK ? (int)(last - start) : BLOCK;
        prepare(values, start, count, bins, steps, &b);
        const byte *hit = outcome + start;
        for (int i = 0; i < count; i++) {
            if (group && group[start + i])
                continue;
            int both = b.fine[i] + b.bin[i];
            bin_of[both] = (uint16_t)b.bin[i];
            add_pixel(&cells[(hit[i] != 0) * size + both], b.high[i], b.low[i]);
        }
    }
    for (int hit = 0; hit < 2; hit++)
        for (Py_ssize_t both = 0; both < size; both++) {
            cell *own = &cells[hit * size + both];
            if (own->pixels_high) {
                int bin = bin_of[both];
                unpack(own, hit, table + 4 * bin);
                unpack(own, hit, fine + 4 * (both - bin));
                own->pixels_high = own->low = 0;
            }
        }
}

/* tally(values, outcome, group, table, fine, pixels, groups, bins, steps): add pixels by group, equal-width bin and
 * outcome, and the limbs of their values, to int64 (groups, bins, 4). `outcome` is booleans. `group` is bytes, or None
 * where all pixels are of group 0; pixels of no group do not count. With one group, `fine` may be int64 (size, 4), to
 * which they are added by fine bin; else it is None. fine_bins.tally, fine_bins.fine_tally. */
PyObject *tally(PyObject *self, PyObject *args) {
    PyObject *values, *objects[2], *group, *fine;
    Py_ssize_t pixels;
    int groups, bins, steps, opened = 0, done = 0;
    if (!PyArg_ParseTuple(args, "OOOOOniii", &values, &objects[0], &group, &objects[1], &fine, &pixels, &groups, &bins,
                          &steps))
        return NULL;
    if (groups < 1 || groups > 255 || (groups > 1 && fine != Py_None) || bins < 1 || bins > 1 << 16 || steps < 0 ||
        steps > 16)
        return PyErr_Format(PyExc_ValueError, "%d groups, %d bins, %d steps", groups, bins, steps);
    Py_buffer views[5];
    const byte *group_of = NULL;
    int64_t *fine_table = NULL;
    cell *cells = NULL;
    uint16_t *bin_of = NULL;
    if (open_floats(values, &views[0], pixels, "tally") < 0)
        return NULL;
    opened = 1;
    if (open_arrays(objects, views + 1, (Py_ssize_t[]){pixels, (Py_ssize_t)groups * bins * 4}, "bQ", "tally") < 0)
        goto end;
    opened = 3;
    if (group != Py_None) {
        if (open_array(group, &views[opened], pixels, 1, 0, "tally") < 0)
            goto end;
        group_of = views[opened++].buf;
    }
    if (fine != Py_None) {
        if (open_array(fine, &views[opened], (Py_ssize_t)fine_bins(steps) * 4, 8, 1, "tally") < 0)
            goto end;
        fine_table = views[opened++].buf;
        bin_of = malloc((fine_bins(steps) + bins) * sizeof *bin_of);
    }
    cells = calloc(fine_table ? 2 * (fine_bins(steps) + bins) : (Py_ssize_t)WAYS * groups * bins * 2, sizeof *cells);
    if (!cells || (fine_table && !bin_of)) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < pixels; first += SEGMENT) {
        Py_ssize_t last = pixels - first < SEGMENT ? pixels : first + SEGMENT;
        if (fine_table)
            tally_fine(&views[0], first, last, views[1].buf, group_of, bins, steps, cells, bin_of, views[2].buf,
                       fine_table);
        else
            tally_groups(&views[0], first, last, views[1].buf, group_of, groups, bins, cells, views[2].buf);
    }
    Py_END_ALLOW_THREADS
    done = 1;
end:
    free(cells), free(bin_of);
    close_arrays(views, opened);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

/* count_pairs(predicted, labels, matrix, pixels, classes, void) -> whether all are classes: add pixels by true and
 * predicted class to int64 (K, K), without those whose label is `void`; confusion.ConfusionMeter. */
PyObject *count_pairs(PyObject *self, PyObject *args) {
    PyObject *objects[3];
    Py_ssize_t pixels;
    int classes, void_label, fits = 1;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "OOOnii", &objects[0], &objects[1], &objects[2], &pixels, &classes, &void_label))
        return NULL;
    if (classes < 1 || classes > 256)
        return PyErr_Format(PyExc_ValueError, "%d classes; expected 1 to 256", classes);
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, (Py_ssize_t)classes * classes}, "bbQ",
                    "count_pairs") < 0)
        return NULL;
    const byte *predicted = views[0].buf, *labels = views[1].buf;
    int64_t *matrix = views[2].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < pixels && fits; i++) {
        if (labels[i] == void_label)
            continue;
        fits = labels[i] < classes && predicted[i] < classes;
        if (fits)
            matrix[labels[i] * classes + predicted[i]]++;
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 3);
    return PyBool_FromLong(fits);
}

/* ------------------------------------------------------------------------------------------------ classes */

/* The same blocks for float32 and float64: passes over the classes of some pixels, `stride` values apart. */
#define CLASS_BLOCKS(TYPE, NAME)                                                                                       \
    WIDE static void insert_##NAME(const TYPE *values, int count, TYPE (*top)[BLOCK]) {                                \
        for (int i = 0; i < count; i++) {                                                                              \
            TYPE v = values[i], less;                                                                                  \
            for (int k = 0; k < MAX_TOPS; k++) {                                                                       \
                less = top[k][i] < v ? top[k][i] : v;                                                                  \
                top[k][i] = top[k][i] > v ? top[k][i] : v;                                                             \
                v = less;                                                                                              \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    WIDE static void pass_##NAME(const TYPE *values, const TYPE *truth, const int32_t *label, int k, int count,        \
                                 int32_t *rank) {                                                                      \
        for (int i = 0; i < count; i++)                                                                                \
            rank[i] += (values[i] > truth[i]) | ((values[i] == truth[i]) & (k < label[i]));                            \
    }                                                                                                                  \
    WIDE static void square_##NAME(const TYPE *values, int count, double *squares) {                                   \
        for (int i = 0; i < count; i++)                                                                                \
            squares[i] += (double)values[i] * (double)values[i];                                                       \
    }                                                                                                                  \
    WIDE static int sum_##NAME(const TYPE *values, const byte *keep, int count, TYPE slack, TYPE *sums) {              \
        int bad = 0;                                                                                                   \
        for (int i = 0; i < count; i++) {                                                                              \
            bad |= keep[i] & !((values[i] >= -slack) & (values[i] <= 1 + slack));                                      \
            sums[i] += values[i];                                                                                      \
        }                                                                                                              \
        return bad;                                                                                                    \
    }                                                                                                                  \
    WIDE static int sum_all_##NAME(const TYPE *values, int count, TYPE slack, TYPE *sums) {                            \
        int bad = 0;                                                                                                   \
        for (int i = 0; i < count; i++) {                                                                              \
            bad |= !((values[i] >= -slack) & (values[i] <= 1 + slack));                                                \
            sums[i] += values[i];                                                                                      \
        }                                                                                                              \
        return bad;                                                                                                    \
    }                                                                                                                  \
    static int rank_##NAME(const TYPE *values, Py_ssize_t stride, int classes, const byte *labels, const byte *keep,   \
                           const double *slacks, int count, double (*top)[BLOCK], int32_t *rank, double *squares,      \
                           double *truth) {                                                                            \
        TYPE own[BLOCK], largest[MAX_TOPS][BLOCK], true_value[BLOCK], sums[BLOCK] = {0}, slack = (TYPE)slacks[0];      \
        int32_t label[BLOCK];                                                                                          \
        int bad = 0;                                                                                                   \
        for (int i = 0; i < count; i++) {                                                                              \
            label[i] = labels[i] < classes ? labels[i] : classes - 1;                                                  \
            true_value[i] = values[label[i] * stride + i];                                                             \
            rank[i] = 0, squares[i] = 0.0;                                                                             \
            for (int k = 0; k < MAX_TOPS; k++)                                                                         \
                largest[k][i] = 0;                                                                                     \
        }                                                                                                              \
        clip_##NAME(true_value, count, true_value);                                                                    \
        for (int k = 0; k < classes; k++) {                                                                            \
            const TYPE *row = values + k * stride;                                                                     \
            bad |= keep ? sum_##NAME(row, keep, count, slack, sums) : sum_all_##NAME(row, count, slack, sums);         \
            clip_##NAME(row, count, own);                                                                              \
            insert_##NAME(own, count, largest);                                                                        \
            pass_##NAME(own, true_value, label, k, count, rank);                                                       \
            square_##NAME(own, count, squares);                                                                        \
        }                                                                                                              \
        for (int i = 0; i < count; i++) {                                                                              \
            truth[i] = true_value[i];                                                                                  \
            for (int k = 0; k < MAX_TOPS; k++)                                                                         \
                top[k][i] = largest[k][i];                                                                             \
            bad |= (!keep || keep[i]) & !((sums[i] >= 1 - slacks[1]) & (sums[i] <= 1 + slacks[1]));                    \
        }                                                                                                              \
        return !bad;                                                                                                   \
    }                                                                                                                  \
    WIDE static void win_##NAME(const TYPE *values, int k, int count, TYPE *best, byte *winner) {                      \
        for (int i = 0; i < count; i++) {                                                                              \
            winner[i] = values[i] > best[i] ? (byte)k : winner[i];                                                     \
            best[i] = values[i] > best[i] ? values[i] : best[i];                                                       \
        }                                                                                                              \
    }

CLASS_BLOCKS(float, singles)
CLASS_BLOCKS(double, doubles)

/* Open probabilities of K classes (K, stride), of which the pixels first to first + count - 1 are asked for. */
static int open_classes(PyObject *object, Py_buffer *view, Py_ssize_t classes, Py_ssize_t stride, Py_ssize_t first,
                        Py_ssize_t count, const char *name) {
    if (classes < 1 || classes > 256 || stride < 0 || first < 0 || count < 0 || count > stride - first) {
        PyErr_Format(PyExc_ValueError, "%s: pixels %zd to %zd of %zd in %zd classes", name, first, first + count,
                     stride, classes);
        return -1;
    }
    return open_floats(object, view, classes * stride, name);
}

/* rank_classes(values, labels, keep, shares, rank, squares, truth, ks, slack, sum_slack, classes, stride, first, count)
 * -> whether the probabilities certainly lie in [0, 1] and sum to 1, but for some slack: they are added in their own
 * type, so the caller takes less than is allowed, and looks again where this says no. Pixels that `keep`, booleans or
 * None, leaves out are not looked at.
 *
 * For every pixel, the largest probability and the sums of the k largest are written to float64 (1 + number of ks,
 * count); how many classes come before the true one, to bytes; the sum of squares over the classes and the
 * probability of the true class, to float64. `labels` are bytes, and those that are no class are taken for the last;
 * `ks` are at most 5, as bytes. inputs.check_values, sketch.Sketch._count_top_k, fine_bins.true_rank,
 * image_rows.score_sums. */
PyObject *rank_classes(PyObject *self, PyObject *args) {
    PyObject *values, *keep, *objects[6];
    Py_ssize_t classes, stride, first, count;
    double slacks[2];
    Py_buffer views[8];
    int certain = 1, opened = 7;
    if (!PyArg_ParseTuple(args, "OOOOOOOOddnnnn", &values, &objects[0], &keep, &objects[1], &objects[2], &objects[3],
                          &objects[4], &objects[5], &slacks[0], &slacks[1], &classes, &stride, &first, &count))
        return NULL;
    Py_ssize_t rows = PyObject_Length(objects[5]) + 1; /* of shares */
    if (rows < 1 || open_classes(values, &views[0], classes, stride, first, count, "rank_classes") < 0)
        return NULL;
    Py_ssize_t items[] = {count, rows * count, count, count, count, rows - 1};
    if (open_arrays(objects, views + 1, items, "bQBQQb", "rank_classes") < 0) {
        PyBuffer_Release(&views[0]);
        return NULL;
    }
    if (keep != Py_None) {
        if (open_array(keep, &views[opened], count, 1, 0, "rank_classes") < 0) {
            close_arrays(views, opened);
            return NULL;
        }
        opened++;
    }
    const byte *labels = views[1].buf, *ks = views[6].buf, *kept = opened == 8 ? views[7].buf : NULL;
    double *shares = views[2].buf, *squares = views[4].buf, *truth = views[5].buf;
    byte *ranks = views[3].buf;
    Py_BEGIN_ALLOW_THREADS
    double top[MAX_TOPS][BLOCK];
    int32_t rank[BLOCK];
    for (Py_ssize_t done = 0; done < count; done += BLOCK) {
        int part = count - done < BLOCK ? (int)(count - done) : BLOCK;
        Py_ssize_t at = first + done;
        const byte *label = labels + done, *own = kept ? kept + done : NULL;
        certain &= views[0].itemsize == 4
                       ? rank_singles((const float *)views[0].buf + at, stride, (int)classes, label, own, slacks, part,
                                      top, rank, squares + done, truth + done)
                       : rank_doubles((const double *)views[0].buf + at, stride, (int)classes, label, own, slacks, part,
                                      top, rank, squares + done, truth + done);
        memcpy(shares + done, top[0], part * sizeof **top);
        for (Py_ssize_t row = 1; row < rows; row++) {
            int most = ks[row - 1] < MAX_TOPS ? ks[row - 1] : MAX_TOPS;
            for (int i = 0; i < part; i++) {
                double mass = 0.0;
                for (int k = 0; k < most; k++)
                    mass += top[k][i];
                shares[row * count + done + i] = mass;
            }
        }
        for (int i = 0; i < part; i++)
            ranks[done + i] = (byte)rank[i];
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, opened);
    return PyBool_FromLong(certain);
}

/* winners(values, winner, largest, classes, stride, first, count): the first of the most probable classes, bytes, and
 * its probability in the type of the values; fine_bins.winners. */
PyObject *winners(PyObject *self, PyObject *args) {
    PyObject *values, *winner, *largest;
    Py_ssize_t classes, stride, first, count;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "OOOnnnn", &values, &winner, &largest, &classes, &stride, &first, &count) ||
        open_classes(values, &views[0], classes, stride, first, count, "winners") < 0)
        return NULL;
    if (open_array(winner, &views[1], count, 1, 1, "winners") < 0) {
        PyBuffer_Release(&views[0]);
        return NULL;
    }
    if (open_array(largest, &views[2], count, views[0].itemsize, 1, "winners") < 0) {
        close_arrays(views, 2);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    Py_ssize_t size = views[0].itemsize;
    memset(views[1].buf, 0, count);
    for (Py_ssize_t done = 0; done < count; done += BLOCK) {
        int part = count - done < BLOCK ? (int)(count - done) : BLOCK;
        const char *from = (const char *)views[0].buf + (first + done) * size;
        char *best = (char *)views[2].buf + done * size;
        byte *won = (byte *)views[1].buf + done;
        memcpy(best, from, part * size);
        for (int k = 1; k < classes; k++) {
            if (size == 4)
                win_singles((const float *)(from + k * stride * size), k, part, (float *)best, won);
            else
                win_doubles((const double *)(from + k * stride * size), k, part, (double *)best, won);
        }
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 3);
    Py_RETURN_NONE;
}
