/* What the compiled files share: how arrays are opened, and the options of the compiler. */

#ifndef DENSECAL_NATIVE_H
#define DENSECAL_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__) || !defined(__GNUC__) /* GCC has an option instead */
#pragma STDC FP_CONTRACT OFF
#endif

/* Linux on x86-64 chooses at load time between SSE2 and AVX2, which halves the time of loops over bytes. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#define WAYS 4 /* copies of a small table: neighbours that share a bin need not wait for each other */

typedef uint8_t byte;

/* fine_bins.fine_size. */
static inline int fine_bins(int steps) { return 2 * ((39 << steps) + 2); }

/* Open a contiguous buffer of exactly so many items. */
static inline int open_array(PyObject *object, Py_buffer *view, Py_ssize_t items, Py_ssize_t itemsize,
                             int writable, const char *name) {
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_ND | PyBUF_WRITABLE : PyBUF_ND) < 0)
        return -1;
    if (view->itemsize == itemsize && view->len == items * itemsize)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: found %zd bytes of items of %zd; expected %zd items of %zd", name, view->len,
                 view->itemsize, items, itemsize);
    PyBuffer_Release(view);
    return -1;
}

/* Open several arrays, or none. The format has a letter per array: the size of its items in bytes, upper case if it is
 * written to: b B (1), h H (2), i I (4), q Q (8). */
static inline int open_arrays(PyObject **objects, Py_buffer *views, const Py_ssize_t *items, const char *format,
                              const char *name) {
    for (int i = 0; format[i]; i++) {
        char letter = format[i] | 32;
        Py_ssize_t size = letter == 'b' ? 1 : letter == 'h' ? 2 : letter == 'i' ? 4 : 8;
        if (open_array(objects[i], &views[i], items[i], size, format[i] < 'a', name) < 0) {
            while (i--)
                PyBuffer_Release(&views[i]);
            return -1;
        }
    }
    return 0;
}

/* Open a contiguous buffer of exactly so many float32 or float64. */
static inline int open_floats(PyObject *object, Py_buffer *view, Py_ssize_t items, const char *name) {
    if (PyObject_GetBuffer(object, view, PyBUF_ND) < 0)
        return -1;
    if ((view->itemsize == 4 || view->itemsize == 8) && view->len == items * view->itemsize)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: found %zd bytes of items of %zd; expected %zd floats", name, view->len,
                 view->itemsize, items);
    PyBuffer_Release(view);
    return -1;
}

static inline void close_arrays(Py_buffer *views, int count) {
    while (count--)
        PyBuffer_Release(&views[count]);
}

/* Of _float_tables.c. */
PyObject *tally(PyObject *self, PyObject *args);

/* Of _class_tables.c. */
PyObject *tally_classes(PyObject *self, PyObject *args);

/* Of _class_order.c. */
PyObject *rank_classes(PyObject *self, PyObject *args);
PyObject *winners(PyObject *self, PyObject *args);
PyObject *count_pairs(PyObject *self, PyObject *args);

#endif
