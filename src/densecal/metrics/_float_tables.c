/* Tables of float64 probabilities: counts and exact sums by equal-width bin and by fine bin.
 *
 * As in _native.c, every function has a counterpart in NumPy, named in its comment, with the same bits.
 */

#include "_native.h"

#include <math.h>

#define BLOCK 512         /* pixels that are prepared together, in the nearest cache */
#define SEGMENT (1 << 17) /* pixels whose sums fit into a cell */
#define HIGH 67108864.0   /* 2^26 */
#define LOW 134217728.0   /* 2^27 */

/* What a table needs to know of a block of values: equal-width bin, the limbs of fine_bins.tally, fine bin. */
typedef struct {
    int32_t bin[BLOCK], high[BLOCK], low[BLOCK], fine[BLOCK];
} block;

/* Probabilities in [0, 1], and 0 for NaN. */
WIDE static void clip_doubles(const double *values, int count, double *clipped) {
    for (int i = 0; i < count; i++) {
        double v = values[i] > 0 ? values[i] : 0;
        clipped[i] = v < 1 ? v : 1;
    }
}

/* The equal-width bin, and the limbs: scaling by powers of two is exact, and so is what is left of a number without its
 * whole part. */
WIDE static void bin_doubles(const double *values, int count, int bins, block *b) {
    for (int i = 0; i < count; i++) {
        int32_t bin = (int32_t)(values[i] * bins);
        b->bin[i] = bin < bins ? bin : bins - 1;
    }
    for (int i = 0; i < count; i++) {
        double scaled = values[i] * HIGH;
        int32_t whole = (int32_t)scaled;
        b->high[i] = whole;
        b->low[i] = (int32_t)rint((scaled - whole) * LOW);
    }
}

/* fine_bins.fine_index, from the leading bits of the distance to the nearer end, which is exact. */
WIDE static void fine_doubles(const double *values, int count, int steps, block *b) {
    double distance[BLOCK];
    uint64_t bits[BLOCK];
    int32_t last = fine_bins(steps) - 1, lowest = (1023 - 40) << steps;
    for (int i = 0; i < count; i++) {
        double mirrored = 1 - values[i];
        distance[i] = mirrored < values[i] ? mirrored : values[i];
    }
    memcpy(bits, distance, count * sizeof *bits);
    for (int i = 0; i < count; i++) {
        int32_t code = (int32_t)(bits[i] >> (52 - steps)) - lowest + 1;
        code = code > 0 ? code : 0;
        b->fine[i] = values[i] > 0.5 ? last - code : code;
    }
}

static void prepare(const double *values, int count, int bins, int steps, block *b) {
    double clipped[BLOCK];
    clip_doubles(values, count, clipped);
    bin_doubles(clipped, count, bins, b);
    if (steps >= 0)
        fine_doubles(clipped, count, steps, b);
}

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
static void tally_groups(const double *values, Py_ssize_t first, Py_ssize_t last, const byte *outcome,
                         const byte *group, int groups, int bins, cell *cells, int64_t *table) {
    block b;
    Py_ssize_t size = (Py_ssize_t)groups * bins * 2;
    for (Py_ssize_t start = first; start < last; start += BLOCK) {
        int count = last - start < BLOCK ? (int)(last - start) : BLOCK;
        prepare(values + start, count, bins, -1, &b);
        const byte *hit = outcome + start;
        if (group)
            for (int i = 0; i < count; i++) {
                int own = group[start + i];
                int at = 2 * (own * bins + b.bin[i]) + (hit[i] != 0);
                if (own < groups)
                    add_pixel(&cells[i % WAYS * size + at], b.high[i], b.low[i]);
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
static void tally_fine(const double *values, Py_ssize_t first, Py_ssize_t last, const byte *outcome,
                       const byte *group, int bins, int steps, cell *cells, uint16_t *bin_of, int64_t *table,
                       int64_t *fine) {
    block b;
    int size = fine_bins(steps) + bins;
    for (Py_ssize_t start = first; start < last; start += BLOCK) {
        int count = last - start < BLOCK ? (int)(last - start) : BLOCK;
        prepare(values + start, count, bins, steps, &b);
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
 * outcome, and the limbs of their values, to int64 (groups, bins, 4). The values are float64, `outcome` is booleans.
 * `group` is bytes, or None where all pixels are of group 0; pixels of no group do not count. With one group, `fine`
 * may be int64 (size, 4), to which they are added by fine bin; else it is None. fine_bins.tally,
 * fine_bins.fine_tally. */
PyObject *tally(PyObject *self, PyObject *args) {
    PyObject *objects[3], *group, *fine;
    Py_ssize_t pixels;
    int groups, bins, steps, opened, done = 0;
    if (!PyArg_ParseTuple(args, "OOOOOniii", &objects[0], &objects[1], &group, &objects[2], &fine, &pixels, &groups,
                          &bins, &steps))
        return NULL;
    if (groups < 1 || groups > 255 || (groups > 1 && fine != Py_None) || bins < 1 || bins > 1 << 16 || steps < 0 ||
        steps > 16)
        return PyErr_Format(PyExc_ValueError, "%d groups, %d bins, %d steps", groups, bins, steps);
    Py_buffer views[5];
    const byte *group_of = NULL;
    int64_t *fine_table = NULL;
    cell *cells = NULL;
    uint16_t *bin_of = NULL;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, (Py_ssize_t)groups * bins * 4}, "qbQ", "tally") < 0)
        return NULL;
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
            tally_fine(views[0].buf, first, last, views[1].buf, group_of, bins, steps, cells, bin_of, views[2].buf,
                       fine_table);
        else
            tally_groups(views[0].buf, first, last, views[1].buf, group_of, groups, bins, cells, views[2].buf);
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
