/* Passes over the classes of softmax maps: their order, checks, winners, the confusion matrix.
 *
 * As in _native.c, every function has a counterpart in NumPy, named in its comment, with the same bits. Probabilities
 * of K classes are float32 or float64, contiguous, (K, pixels).
 */

#include "_native.h"

#define BLOCK 512      /* pixels that are looked at together, in the nearest cache */
#define WIN_BLOCK 4096 /* the same where less is kept of a pixel */
#define ROWS 4         /* classes that are taken in together, while what is kept of a pixel is in registers */
#define MAX_TOPS 5

#define TYPE float
#define NAME(x) x##_singles
#include "_class_blocks.h"
#undef TYPE
#undef NAME
#define TYPE double
#define NAME(x) x##_doubles
#include "_class_blocks.h"

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

/* rank_classes(values, labels, keep, top, shares, rank, scores, ks, slack, sum_slack, classes, stride, first, count)
 * -> whether the probabilities certainly lie in [0, 1] and sum to 1, but for some slack: they are added in their own
 * type, so the caller takes less than is allowed, and looks again where this says no. Pixels that `keep`, booleans or
 * None, leaves out are not looked at.
 *
 * For every pixel, the largest probability is written to `top`, in the type of the values; the sums of the k largest to
 * float64 (number of ks, count); how many classes come before the true one, or 5 where there are more, to bytes; the
 * Brier score and the probability of the true class to float64 (2, count). `labels` are bytes, and those that are no
 * class are taken for the last; `ks` are bytes that rise to at most 5. inputs.check_values,
 * sketch.Sketch._count_top_k, fine_bins.true_rank, image_rows.score_sums. */
PyObject *rank_classes(PyObject *self, PyObject *args) {
    PyObject *values, *keep, *top, *objects[5];
    Py_ssize_t classes, stride, first, count;
    double slacks[2];
    Py_buffer views[8];
    int certain = 1;
    if (!PyArg_ParseTuple(args, "OOOOOOOOddnnnn", &values, &objects[0], &keep, &top, &objects[1], &objects[2],
                          &objects[3], &objects[4], &slacks[0], &slacks[1], &classes, &stride, &first, &count))
        return NULL;
    Py_ssize_t rows = PyObject_Length(objects[4]);
    if (rows < 0 || open_classes(values, &views[0], classes, stride, first, count, "rank_classes") < 0)
        return NULL;
    if (open_arrays(objects, views + 1, (Py_ssize_t[]){count, rows * count, count, 2 * count, rows}, "bQBQb",
                    "rank_classes") < 0) {
        PyBuffer_Release(&views[0]);
        return NULL;
    }
    Py_ssize_t size = views[0].itemsize;
    if (open_array(top, &views[6], count, size, 1, "rank_classes") < 0) {
        close_arrays(views, 6);
        return NULL;
    }
    if (keep != Py_None && open_array(keep, &views[7], count, 1, 0, "rank_classes") < 0) {
        close_arrays(views, 7);
        return NULL;
    }
    const byte *labels = views[1].buf, *ks = views[5].buf, *kept = keep == Py_None ? NULL : views[7].buf;
    double *shares = views[2].buf, *scores = views[4].buf;
    byte *ranks = views[3].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t done = 0; done < count; done += BLOCK) {
        int part = count - done < BLOCK ? (int)(count - done) : BLOCK;
        const byte *own = kept ? kept + done : NULL;
        if (size == 4)
            certain &= rank_block_singles((const float *)views[0].buf + first + done, stride, (int)classes,
                                          labels + done, own, ks, rows, slacks, part, (float *)views[6].buf + done,
                                          shares + done, ranks + done, scores + done, count);
        else
            certain &= rank_block_doubles((const double *)views[0].buf + first + done, stride, (int)classes,
                                          labels + done, own, ks, rows, slacks, part, (double *)views[6].buf + done,
                                          shares + done, ranks + done, scores + done, count);
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, keep == Py_None ? 7 : 8);
    return PyBool_FromLong(certain);
}

/* winners(values, winner, largest, classes, stride, first, count): the first of the most probable classes, bytes, and
 * its probability in the type of the values; confusion.winners. */
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
    byte *won = views[1].buf;
    for (Py_ssize_t done = 0; done < count; done += WIN_BLOCK) {
        int part = count - done < WIN_BLOCK ? (int)(count - done) : WIN_BLOCK;
        if (views[0].itemsize == 4)
            win_block_singles((const float *)views[0].buf + first + done, stride, (int)classes, part,
                              (float *)views[2].buf + done, won + done);
        else
            win_block_doubles((const double *)views[0].buf + first + done, stride, (int)classes, part,
                              (double *)views[2].buf + done, won + done);
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 3);
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
