/* Calibration errors of resamples, which intervals count at every guess of an end (bootstrap.py).
 *
 * As in _native.c the NumPy counterpart gives the same bits: gaps are added in the order of their bins.
 */

#include "_native.h"

#include <math.h>

#define RESAMPLES 128 /* whose sums are made together */

/* Add |gap + noise| of one bin to the sums, or only its part of one sign; NaN stays NaN. */
WIDE static void add_bin(double gap, const double *restrict noise, double sign, Py_ssize_t count,
                         double *restrict sums) {
    if (sign == 0.0)
        for (Py_ssize_t i = 0; i < count; i++)
            sums[i] += fabs(gap + noise[i]);
    else
        for (Py_ssize_t i = 0; i < count; i++) {
            double counted = sign * (gap + noise[i]);
            sums[i] += counted < 0.0 ? 0.0 : counted;
        }
}

/* often_reached(gaps, noise, sign, side, estimate, share, bins, resamples): whether in so large a share of the
 * resamples the figure of the gaps (bins,) + noise (bins, resamples) is at least the estimate, for side 1, or at most,
 * for side -1; bootstrap._often_reached. */
PyObject *often_reached(PyObject *self, PyObject *args) {
    PyObject *objects[2];
    double sign, side, estimate, share;
    Py_ssize_t bins, resamples, reached = 0;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OOddddnn", &objects[0], &objects[1], &sign, &side, &estimate, &share, &bins,
                          &resamples))
        return NULL;
    if (bins < 0 || resamples < 1 || bins > PY_SSIZE_T_MAX / 8 / resamples)
        return PyErr_Format(PyExc_ValueError, "found %zd bins of %zd resamples", bins, resamples);
    if (open_arrays(objects, views, (Py_ssize_t[]){bins, bins * resamples}, "qq", "often_reached") < 0)
        return NULL;
    const double *gaps = views[0].buf, *noise = views[1].buf;
    int often = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < resamples && !often; first += RESAMPLES) {
        Py_ssize_t count = resamples - first < RESAMPLES ? resamples - first : RESAMPLES;
        double sums[RESAMPLES] = {0.0};
        for (Py_ssize_t bin = 0; bin < bins; bin++)
            add_bin(gaps[bin], noise + bin * resamples + first, sign, count, sums);
        for (Py_ssize_t i = 0; i < count; i++)
            reached += side * (sums[i] - estimate) >= 0.0;
        often = (double)reached / (double)resamples >= share;
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 2);
    return PyBool_FromLong(often);
}
