/* Tables of the float32 probabilities of K classes: counts and exact sums by equal-width bin and by fine bin.
 *
 * Most of the time goes into additions at places that depend on the values. So a pixel is one addition to one number of
 * 64 bits, a cell; every class has one for each outcome, fine bin and equal-width bin. The upper 16 bits of a cell are
 * the number of its pixels. Below them is the sum of a word of 32 bits per pixel, from which the sums of both limbs of
 * fine_bins.tally follow:
 *
 *   below 2^-30    The high limb is 0; the word is the low one.
 *   from 1/8 on    The low limb is 0; the word is the high one.
 *   between        Values of one fine bin differ in the last 16 bits of their significand at most. In the word, bits
 *                  that are worth less than 2^-26 stay where they are, and the rest of the last 16 is moved up by 16.
 *                  So the sums of both parts over 2^16 pixels do not meet.
 */

#include "_native.h"

#include <math.h>

#define BLOCK 512             /* pixels that are counted together, in the nearest cache */
#define GROUP 32              /* pixels of a block that are placed together: faster if all of them are small */
#define STRAND 64             /* neighbours often share a cell, whose sum is not ready yet; those so far apart rarely */
#define MOST_PIXELS (1 << 15) /* a cell with so many is emptied before as many more are counted */
#define PIXEL ((uint64_t)1 << 48)
#define TINY 0x1p-30f
#define EIGHTH 0.125f

/* The cells of a class, by outcome, (2, size), and one for void pixels. */
typedef struct {
    int bins, steps, size;
    float limit;     /* values below it are in bin 0, and below EIGHTH */
    int32_t *starts; /* the first cell of each equal-width bin, and their end */
    uint64_t *cells;
} class_cells;

/* The cells and words of the pixels of a block. */
typedef struct {
    int32_t index[BLOCK];
    uint32_t word[BLOCK];
} places;

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint32_t word_below_eighth(float value) {
    uint32_t bits = bits_of(value), exponent = bits >> 23;
    uint32_t shift = exponent > 124 ? 0 : exponent > 124 - 23 ? 124 - exponent : 23; /* bits below 2^-26 */
    uint32_t upper = bits >> shift << shift;
    /* the last bit of value + TINY is worth 2^-53, and is rounded like the limb */
    return value < TINY ? bits_of(value + TINY) - bits_of(TINY) : (bits - upper) | upper << 16;
}

/* The largest of the bits of GROUP values: negative numbers and NaN are above all others. */
WIDE static uint32_t most_bits(const float *values) {
    uint32_t most = 0;
    for (int i = 0; i < GROUP; i++)
        most = bits_of(values[i]) > most ? bits_of(values[i]) : most;
    return most;
}

/* Place GROUP values that are all below `limit`. */
WIDE static void place_low(const float *values, const byte *labels, int own, int steps, int size,
                           int32_t *restrict index, uint32_t *restrict word) {
    int32_t below = ((127 - 40) << steps) - 1;
    for (int i = 0; i < GROUP; i++) {
        int32_t code = (int32_t)(bits_of(values[i]) >> (23 - steps)) - below;
        index[i] = (code > 0 ? code : 0) + (labels[i] == own ? size : 0);
        word[i] = word_below_eighth(values[i]);
    }
}

/* Place GROUP values; fine_bins.fine_index, fine_bins.equal_width_index. */
WIDE static void place(const float *values, const byte *labels, int own, int bins, int steps, int size,
                       int32_t *restrict index, uint32_t *restrict word) {
    int32_t below = ((127 - 40) << steps) - 1, last = fine_bins(steps) - 1;
    for (int i = 0; i < GROUP; i++) {
        float v = values[i] > 0 ? values[i] : 0;
        v = v < 1 ? v : 1;
        int32_t bin = (int32_t)((double)v * bins);
        bin = bin < bins ? bin : bins - 1;
        float mirrored = 1 - v;
        int32_t code = (int32_t)(bits_of(mirrored < v ? mirrored : v) >> (23 - steps)) - below;
        code = code > 0 ? code : 0;
        index[i] = (v > 0.5f ? last - code : code) + bin + (labels[i] == own ? size : 0);
        uint32_t small = word_below_eighth(v);
        word[i] = v < EIGHTH ? small : (uint32_t)(int32_t)(v * 0x1p26f);
    }
}

WIDE static void leave_out(const byte *keep, int nowhere, int32_t *index) {
    for (int i = 0; i < GROUP; i++)
        index[i] = keep[i] ? index[i] : nowhere;
}

WIDE static int are_equal(const int32_t *index) {
    int differ = 0;
    for (int i = 0; i < GROUP; i++)
        differ |= index[i] ^ index[0];
    return !differ;
}

/* Count the pixels of a block by whether their label is `own`. */
static void add_block(const float *values, const byte *labels, const byte *keep, int own, const class_cells *c) {
    places p;
    int filled = 0;
    for (int start = 0; start < BLOCK; start += GROUP) {
        int32_t *index = p.index + filled;
        uint32_t most = most_bits(values + start);
        if (most < bits_of(c->limit))
            place_low(values + start, labels + start, own, c->steps, c->size, index, p.word + filled);
        else
            place(values + start, labels + start, own, c->bins, c->steps, c->size, index, p.word + filled);
        if (keep)
            leave_out(keep + start, 2 * c->size, index);
        if (most == 0 && are_equal(index)) /* in one cell every addition would wait for the one before */
            c->cells[*index] += GROUP * PIXEL;
        else
            filled += GROUP;
    }
    for (int from = 0; from < STRAND; from++)
        for (int i = from; i < filled; i += STRAND)
            c->cells[p.index[i]] += PIXEL + p.word[i];
}

/* Count fewer pixels: a block that is filled up with some that are left out. */
static void add_rest(const float *values, const byte *labels, const byte *keep, int own, int count,
                     const class_cells *c) {
    float v[BLOCK] = {0};
    byte label[BLOCK] = {0}, kept[BLOCK] = {0};
    memcpy(v, values, count * sizeof *v);
    memcpy(label, labels, count);
    if (keep)
        memcpy(kept, keep, count);
    else
        memset(kept, 1, count);
    add_block(v, label, kept, own, c);
}

/* Whether a cell has MOST_PIXELS. */
WIDE static int is_any_full(const uint64_t *cells, int count) {
    uint64_t any = 0;
    for (int i = 0; i < count; i++)
        any |= cells[i];
    return any >= MOST_PIXELS * PIXEL;
}

/* Empty the cells with at least so many pixels into int64 counts by outcome and limbs, (bins, 4), and the same by fine
 * bin, unless that is NULL. */
static void empty_cells(const class_cells *c, int least, int64_t *table, int64_t *fine) {
    for (int outcome = 0; outcome < 2; outcome++) {
        uint64_t *cells = c->cells + outcome * c->size;
        for (int i = 0, bin = 0; i < c->size; i++) {
            if (cells[i] < least * PIXEL)
                continue;
            while (i >= c->starts[bin + 1])
                bin++;
            int64_t pixels = (int64_t)(cells[i] >> 48), sum = (int64_t)(cells[i] & (PIXEL - 1)), high = 0, low = 0;
            int code = i - bin - 1, octave = code >> c->steps; /* values from 2^(octave - 40) on */
            if (octave < 40 - 30)
                low = sum;
            else if (octave >= 40 - 3)
                high = sum;
            else {
                int shift = 40 - 3 - octave; /* bits of the significand below 2^-26 */
                int64_t leading = 128 | (code >> (c->steps - 7) & 127);
                high = pixels * (leading << 16 >> shift) + (sum >> (16 + shift));
                low = sum & (((int64_t)1 << (16 + shift)) - 1);
                low += shift > 23 ? pixels << 23 : 0; /* the first bit of a significand is not written */
                low <<= 27 - shift;
            }
            table[4 * bin + outcome] += pixels, table[4 * bin + 2] += high, table[4 * bin + 3] += low;
            if (fine) {
                int64_t *own = fine + 4 * (i - bin);
                own[outcome] += pixels, own[2] += high, own[3] += low;
            }
            cells[i] = 0;
        }
    }
}

/* Make cells, empty ones; -1 without memory. */
static int make_cells(int bins, int steps, class_cells *c) {
    c->bins = bins, c->steps = steps, c->limit = EIGHTH;
    c->size = fine_bins(steps) + bins;
    c->starts = calloc(bins + 1, sizeof *c->starts);
    c->cells = calloc(2 * c->size + 1, sizeof *c->cells);
    if (!c->starts || !c->cells)
        return -1;
    for (int bin = 1; bin < bins; bin++) {
        float first[GROUP] = {(float)((double)bin / bins)};
        if ((double)*first * bins < bin)
            *first = nextafterf(*first, 1);
        places p;
        place(first, (const byte[GROUP]){0}, 1, bins, steps, 0, p.index, p.word);
        c->starts[bin] = *p.index;
        c->limit = *first < c->limit ? *first : c->limit;
    }
    c->starts[bins] = c->size;
    return 0;
}

/* Count the pixels of a class in all images. */
static void tally_class(const float *values, const byte *labels, const byte *keep, int own, Py_ssize_t images,
                        Py_ssize_t stride, Py_ssize_t pixels, const class_cells *c, int64_t *table, int64_t *fine) {
    int counted = 0;
    for (Py_ssize_t image = 0; image < images; image++)
        for (Py_ssize_t start = 0; start < pixels; start += BLOCK) {
            const float *v = values + image * stride + start;
            Py_ssize_t at = image * pixels + start;
            if (start + BLOCK <= pixels)
                add_block(v, labels + at, keep ? keep + at : NULL, own, c);
            else
                add_rest(v, labels + at, keep ? keep + at : NULL, own, (int)(pixels - start), c);
            counted += BLOCK;
            if (counted == MOST_PIXELS) {
                counted = 0;
                if (is_any_full(c->cells, 2 * c->size))
                    empty_cells(c, MOST_PIXELS, table, fine);
            }
        }
    empty_cells(c, 1, table, fine);
}

/* tally_classes(values, labels, keep, table, fine, images, classes, pixels, bins, steps): add pixels by class,
 * equal-width bin and whether they are of the class, and the limbs of their values, to int64 (K, bins, 4), and by fine
 * bin to `fine`, int64 (K, size, 4) or None. The values are float32 (images, K, pixels), `labels` are bytes (images,
 * pixels); pixels that `keep`, booleans or None, leaves out do not count. fine_bins.tally, fine_bins.fine_tally. */
PyObject *tally_classes(PyObject *self, PyObject *args) {
    PyObject *objects[3], *keep, *fine;
    Py_ssize_t images, classes, pixels;
    int bins, steps, opened, done = 0;
    if (!PyArg_ParseTuple(args, "OOOOOnnnii", &objects[0], &objects[1], &keep, &objects[2], &fine, &images, &classes,
                          &pixels, &bins, &steps))
        return NULL;
    if (images < 0 || classes < 1 || classes > 256 || pixels < 0 || bins < 1 || bins > 1 << 16 || steps < 7 ||
        steps > 16)
        return PyErr_Format(PyExc_ValueError, "%zd images of %zd classes and %zd pixels, %d bins, %d steps", images,
                            classes, pixels, bins, steps);
    Py_buffer views[5];
    const byte *kept = NULL;
    int64_t *fine_table = NULL;
    class_cells c = {0};
    if (open_arrays(objects, views, (Py_ssize_t[]){images * classes * pixels, images * pixels, classes * bins * 4},
                    "ibQ", "tally_classes") < 0)
        return NULL;
    opened = 3;
    if (keep != Py_None) {
        if (open_array(keep, &views[opened], images * pixels, 1, 0, "tally_classes") < 0)
            goto end;
        kept = views[opened++].buf;
    }
    if (fine != Py_None) {
        if (open_array(fine, &views[opened], classes * fine_bins(steps) * 4, 8, 1, "tally_classes") < 0)
            goto end;
        fine_table = views[opened++].buf;
    }
    if (make_cells(bins, steps, &c) < 0) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t k = 0; k < classes; k++)
        tally_class((const float *)views[0].buf + k * pixels, views[1].buf, kept, (int)k, images, classes * pixels,
                    pixels, &c, (int64_t *)views[2].buf + k * bins * 4,
                    fine_table ? fine_table + k * fine_bins(steps) * 4 : NULL);
    Py_END_ALLOW_THREADS
    done = 1;
end:
    free(c.cells), free(c.starts);
    close_arrays(views, opened);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}
