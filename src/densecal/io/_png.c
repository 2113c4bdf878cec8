/* The filters of PNG rows, undone; without this file Pillow does it.
 *
 * Callers pass contiguous arrays of bytes. Sizes are checked.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API 2 /* png.py knows which it can call */

/* As in metrics/_native.h. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

typedef uint8_t byte;

enum { NONE, SUB, UP, AVERAGE, PAETH };

/* Rows of one or two bytes per pixel. The compiler makes a version for each: `step` is a constant in both. */
static inline void undo_row(int filter, const byte *row, const byte *above, byte *out, Py_ssize_t length, int step) {
    byte left[2] = {0}, corner[2] = {0};
    switch (filter) {
    case NONE:
        memcpy(out, row, length);
        break;
    case UP:
        for (Py_ssize_t x = 0; x < length; x++)
            out[x] = (byte)(row[x] + above[x]);
        break;
    case SUB:
        for (Py_ssize_t x = 0; x < length; x += step)
            for (int i = 0; i < step; i++)
                out[x + i] = left[i] = (byte)(row[x + i] + left[i]);
        break;
    case AVERAGE:
        for (Py_ssize_t x = 0; x < length; x += step)
            for (int i = 0; i < step; i++)
                out[x + i] = left[i] = (byte)(row[x + i] + ((left[i] + above[x + i]) >> 1));
        break;
    default:
        for (Py_ssize_t x = 0; x < length; x += step)
            for (int i = 0; i < step; i++) {
                int a = left[i], b = above[x + i], c = corner[i], nearest = a;
                if (b != c) { /* else the left pixel is the nearest, as in all flat regions */
                    int to_a = abs(b - c), to_b = abs(a - c), to_c = abs(a + b - 2 * c);
                    nearest = to_b <= to_c ? b : c;
                    nearest = to_a <= to_b && to_a <= to_c ? a : nearest;
                }
                out[x + i] = left[i] = (byte)(row[x + i] + nearest);
                corner[i] = (byte)b;
            }
    }
}

static void undo_single(int filter, const byte *row, const byte *above, byte *out, Py_ssize_t length) {
    undo_row(filter, row, above, out, length, 1);
}

static void undo_double(int filter, const byte *row, const byte *above, byte *out, Py_ssize_t length) {
    undo_row(filter, row, above, out, length, 2);
}

/* undo_filters(rows, pixels, height, length, step) -> whether all filters are known: turn rows, each a filter and
 * `length` bytes, into pixels (height, length) of `step` bytes. */
static PyObject *undo_filters(PyObject *self, PyObject *args) {
    PyObject *rows, *pixels;
    Py_ssize_t height, length;
    int step, known = 1;
    Py_buffer from, to;
    if (!PyArg_ParseTuple(args, "OOnni", &rows, &pixels, &height, &length, &step))
        return NULL;
    if (height < 1 || length < 1 || length > PY_SSIZE_T_MAX / height - 1 || (step != 1 && step != 2) || length % step)
        return PyErr_Format(PyExc_ValueError, "%zd rows of %zd bytes in steps of %d", height, length, step);
    if (PyObject_GetBuffer(rows, &from, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(pixels, &to, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&from);
        return NULL;
    }
    if (from.len != height * (length + 1) || to.len != height * length) {
        PyErr_Format(PyExc_ValueError, "found %zd and %zd bytes; expected %zd rows of %zd bytes", from.len, to.len,
                     height, length);
        PyBuffer_Release(&from), PyBuffer_Release(&to);
        return NULL;
    }
    byte *first = calloc(1, length); /* the row above the first */
    if (first) {
        Py_BEGIN_ALLOW_THREADS
        const byte *row = from.buf, *above = first;
        byte *out = to.buf;
        for (Py_ssize_t y = 0; y < height && known; y++) {
            known = row[0] <= PAETH;
            if (known)
                (step == 1 ? undo_single : undo_double)(row[0], row + 1, above, out, length);
            above = out, out += length, row += length + 1;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&from), PyBuffer_Release(&to);
    if (!first)
        return PyErr_NoMemory();
    free(first);
    return PyBool_FromLong(known);
}

enum { MODULUS = 65521, PIECE = 4096 }; /* both sums of a piece fit into 32 bits */

/* Add up bytes, and bytes times the number of those from there on. */
WIDE static void sum_piece(const byte *bytes, uint32_t length, uint32_t *sum, uint32_t *weighted) {
    uint32_t total = 0, products = 0;
    for (uint32_t i = 0; i < length; i++) {
        total += bytes[i];
        products += (length - i) * bytes[i];
    }
    *sum = total, *weighted = products;
}

/* adler32(bytes) -> zlib.adler32, of vectors of bytes. */
static PyObject *adler32(PyObject *self, PyObject *object) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t a = 1, b = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < view.len; first += PIECE) {
        uint32_t length = view.len - first < PIECE ? (uint32_t)(view.len - first) : PIECE, sum, weighted;
        sum_piece((const byte *)view.buf + first, length, &sum, &weighted);
        b = (uint32_t)((b + (uint64_t)a * length + weighted) % MODULUS);
        a = (a + sum) % MODULUS;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(b << 16 | a);
}

static PyMethodDef methods[] = {
    {"adler32", adler32, METH_O, NULL},
    {"undo_filters", undo_filters, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_png", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__png(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "API", API) < 0)
        Py_CLEAR(self);
    return self;
}
