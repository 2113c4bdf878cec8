/* Passes over pictures that take NumPy many arrays: histograms, distances in the grid, objects, patches, weighted F.
 *
 * Every function has a counterpart in NumPy, named in its comment, that is used where this file was not compiled and
 * gives the same bits: results are integers, or floats computed by the same operations in the same order. So this file
 * must be compiled without contraction of multiplications and additions, as -std=c11 and MSVC do. Callers pass
 * contiguous arrays of the types that are named here; sizes are checked, values are not.
 */

#include "_native.h"

#define API 3 /* compiled.py knows which it can call */

#define BLOCK 64 /* columns whose distances are searched together */
#define MAX_LIMIT 180

static int check_shape(Py_ssize_t height, Py_ssize_t width) {
    if (height > 0 && width > 0 && width <= INT32_MAX / 4 && height <= INT32_MAX / width)
        return 0;
    PyErr_Format(PyExc_ValueError, "a picture of %zd x %zd pixels", height, width);
    return -1;
}

/* ------------------------------------------------------------------------------------------------ histograms */

#define RUN 8

/* Return whether the next RUN bytes are equal, as in most of the background and of objects. */
static inline int is_run(const byte *bytes) {
    uint64_t eight;
    memcpy(&eight, bytes, sizeof eight);
    return eight == bytes[0] * UINT64_C(0x0101010101010101);
}

/* Add a part of a row to tables of 2 x 256 counts. Most pixels share one bin, where each increment waits for the one
 * before, so neighbours have tables of their own. */
static void count_part(const byte *levels, const byte *mask, Py_ssize_t pixels, uint32_t *tables) {
    Py_ssize_t i = 0;
    for (; i + RUN <= pixels; i += RUN) {
        if (is_run(levels + i) && is_run(mask + i)) {
            tables[(mask[i] != 0) * 256 + levels[i]] += RUN;
            continue;
        }
        for (int j = 0; j < RUN; j++)
            tables[j % WAYS * 512 + (mask[i + j] != 0) * 256 + levels[i + j]]++;
    }
    for (; i < pixels; i++)
        tables[(mask[i] != 0) * 256 + levels[i]]++;
}

static void add_ways(const uint32_t *tables, int64_t *counts) {
    for (int bin = 0; bin < 512; bin++)
        for (int way = 0; way < WAYS; way++)
            counts[bin] += tables[way * 512 + bin];
}

/* count_levels(levels, mask, counts): add pixels to int64 (2, 256); segmentation.count_levels. */
static PyObject *count_levels(PyObject *self, PyObject *args) {
    PyObject *objects[3];
    Py_ssize_t pixels;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "OOOn", &objects[0], &objects[1], &objects[2], &pixels))
        return NULL;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, 512}, "bbQ", "count_levels") < 0)
        return NULL;
    const byte *levels = views[0].buf, *mask = views[1].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < pixels; first += 1 << 30) { /* 32 bits hold that many */
        uint32_t tables[WAYS * 512] = {0};
        count_part(levels + first, mask + first, pixels - first < 1 << 30 ? pixels - first : 1 << 30, tables);
        add_ways(tables, views[2].buf);
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 3);
    Py_RETURN_NONE;
}

/* count_zones(levels, mask, zones, counts, pixels): the same by zone 0 to 3, into int64 (4, 2, 256). */
static PyObject *count_zones(PyObject *self, PyObject *args) {
    PyObject *objects[4];
    Py_ssize_t pixels;
    Py_buffer views[4];
    if (!PyArg_ParseTuple(args, "OOOOn", &objects[0], &objects[1], &objects[2], &objects[3], &pixels))
        return NULL;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, pixels, 4 * 512}, "bbbQ", "count_zones") < 0)
        return NULL;
    const byte *levels = views[0].buf, *mask = views[1].buf, *zones = views[2].buf;
    int64_t *counts = views[3].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t first = 0; first < pixels; first += 1 << 30) {
        uint32_t tables[WAYS][4 * 512] = {{0}};
        Py_ssize_t last = pixels - first < 1 << 30 ? pixels : first + (1 << 30);
        Py_ssize_t i = first;
        for (; i + RUN <= last; i += RUN) {
            if (is_run(levels + i) && is_run(mask + i) && is_run(zones + i)) {
                tables[0][(zones[i] & 3) * 512 + (mask[i] != 0) * 256 + levels[i]] += RUN;
                continue;
            }
            for (int j = 0; j < RUN; j++)
                tables[j % WAYS][(zones[i + j] & 3) * 512 + (mask[i + j] != 0) * 256 + levels[i + j]]++;
        }
        for (; i < last; i++)
            tables[0][(zones[i] & 3) * 512 + (mask[i] != 0) * 256 + levels[i]]++;
        for (int bin = 0; bin < 4 * 512; bin++)
            for (int way = 0; way < WAYS; way++)
                counts[bin] += tables[way][bin];
    }
    Py_END_ALLOW_THREADS
    close_arrays(views, 4);
    Py_RETURN_NONE;
}

/* count_quadrants(levels, mask, counts, height, width): the same for the quadrants around the centroid of the mask;
 * segmentation._count_quadrants. */
static PyObject *count_quadrants(PyObject *self, PyObject *args) {
    PyObject *objects[3];
    Py_ssize_t height, width, cut_y, cut_x;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "OOOnnnn", &objects[0], &objects[1], &objects[2], &height, &width, &cut_y, &cut_x) ||
        check_shape(height, width) < 0)
        return NULL;
    Py_ssize_t pixels = height * width;
    cut_x = cut_x < 0 ? 0 : cut_x < width ? cut_x : width;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, 4 * 512}, "bbQ", "count_quadrants") < 0)
        return NULL;
    const byte *levels = views[0].buf, *mask = views[1].buf;
    int64_t *counts = views[2].buf;
    Py_BEGIN_ALLOW_THREADS
    uint32_t tables[4][WAYS * 512] = {{0}};
    for (Py_ssize_t y = 0; y < height; y++) {
        Py_ssize_t row = y * width;
        int half = y < cut_y ? 0 : 2;
        count_part(levels + row, mask + row, cut_x, tables[half]);
        count_part(levels + row + cut_x, mask + row + cut_x, width - cut_x, tables[half + 1]);
    }
    for (int quadrant = 0; quadrant < 4; quadrant++)
        add_ways(tables[quadrant], counts + 512 * quadrant);
    Py_END_ALLOW_THREADS
    close_arrays(views, 3);
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------------------------ distances */

/* Distance of every pixel along its column to the nearest pixel of a value, at most `far` (<= 181). */
WIDE static void column_distances(const byte *mask, int value, Py_ssize_t height, Py_ssize_t width, int far,
                                  byte *distance) {
    for (Py_ssize_t y = 0; y < height; y++) {
        const byte *m = mask + y * width, *above = distance + (y - 1) * width;
        byte *d = distance + y * width;
        if (y == 0)
            for (Py_ssize_t x = 0; x < width; x++)
                d[x] = (m[x] != 0) == value ? 0 : (byte)far;
        else
            for (Py_ssize_t x = 0; x < width; x++) {
                byte next = above[x] < far ? (byte)(above[x] + 1) : (byte)far;
                d[x] = (m[x] != 0) == value ? 0 : next;
            }
    }
    for (Py_ssize_t y = height - 2; y >= 0; y--) {
        const byte *below = distance + (y + 1) * width;
        byte *d = distance + y * width;
        for (Py_ssize_t x = 0; x < width; x++) {
            byte next = below[x] < far ? (byte)(below[x] + 1) : (byte)far;
            d[x] = next < d[x] ? next : d[x];
        }
    }
}

/* Squares of a row of distances, between `limit` columns and at least as many again that are out of reach. */
WIDE static void square_row(const byte *distance, Py_ssize_t width, int limit, uint16_t *row) {
    uint16_t far = (uint16_t)(limit * limit + 1);
    for (Py_ssize_t x = 0; x < width; x++) {
        uint16_t d = distance[x];
        row[limit + x] = d > limit ? far : (uint16_t)(d * d);
    }
}

/* Squared distances of BLOCK pixels: the minimum over dx of dx^2 + row[x + dx]; `row` points at the first pixel. `best`
 * holds the row, or 0 for pixels that do not matter, and then the minimum. */
WIDE static void search_block(const uint16_t *restrict row, int limit, uint16_t *restrict best) {
    uint16_t far = (uint16_t)(limit * limit + 1), least = far, most;
    for (Py_ssize_t x = -limit; x < BLOCK + limit; x++)
        least = row[x] < least ? row[x] : least;
    if (least == far)
        return;
    for (int dx = 1; dx <= limit; dx++) {
        if (dx % 4 == 1) { /* no farther column is nearer than this */
            most = 0;
            for (int x = 0; x < BLOCK; x++)
                most = best[x] > most ? best[x] : most;
            if (most <= least + dx * dx)
                break;
        }
        const uint16_t *left = row - dx, *right = row + dx;
        const uint16_t step = (uint16_t)(dx * dx);
        for (int x = 0; x < BLOCK; x++) {
            uint16_t nearer = left[x] < right[x] ? left[x] : right[x];
            nearer = (uint16_t)(nearer + step);
            best[x] = nearer < best[x] ? nearer : best[x];
        }
    }
    for (int x = 0; x < BLOCK; x++)
        best[x] = best[x] < far ? best[x] : far;
}

static uint16_t *new_row(Py_ssize_t width, int limit) {
    Py_ssize_t items = width + BLOCK + 2 * limit;
    uint16_t *row = malloc(items * sizeof *row);
    for (Py_ssize_t x = 0; row && x < items; x++)
        row[x] = (uint16_t)(limit * limit + 1);
    return row;
}

/* distance_squared(sources, result, height, width, limit): uint16, exact up to limit^2 and limit^2 + 1 beyond;
 * geometry.distance_squared. */
static PyObject *distance_squared(PyObject *self, PyObject *args) {
    PyObject *objects[2];
    Py_ssize_t height, width;
    int limit;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OOnni", &objects[0], &objects[1], &height, &width, &limit) ||
        check_shape(height, width) < 0)
        return NULL;
    if (limit < 1 || limit > MAX_LIMIT)
        return PyErr_Format(PyExc_ValueError, "limit: found %d; expected 1 to %d", limit, MAX_LIMIT);
    Py_ssize_t pixels = height * width;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels}, "bH", "distance_squared") < 0)
        return NULL;
    byte *column = malloc(pixels);
    uint16_t *row = new_row(width, limit), *result = views[1].buf;
    int done = column && row;
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        column_distances(views[0].buf, 1, height, width, limit + 1, column);
        for (Py_ssize_t y = 0; y < height; y++) {
            square_row(column + y * width, width, limit, row);
            for (Py_ssize_t x = 0; x < width; x += BLOCK) {
                uint16_t best[BLOCK];
                memcpy(best, row + limit + x, sizeof best);
                search_block(row + limit + x, limit, best);
                memcpy(result + y * width + x, best, (width - x < BLOCK ? width - x : BLOCK) * sizeof *best);
            }
        }
        Py_END_ALLOW_THREADS
    }
    free(column), free(row);
    close_arrays(views, 2);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Distance of every pixel along its column to the nearest pixel of the other value, at most `far`. */
WIDE static void column_changes(const byte *mask, Py_ssize_t height, Py_ssize_t width, int far, byte *distance) {
    memset(distance, far, width);
    for (Py_ssize_t y = 1; y < height; y++) {
        const byte *m = mask + y * width, *above = distance + (y - 1) * width;
        byte *d = distance + y * width;
        for (Py_ssize_t x = 0; x < width; x++) {
            byte next = above[x] < far ? (byte)(above[x] + 1) : (byte)far;
            d[x] = m[x] != m[x - width] ? 1 : next;
        }
    }
    for (Py_ssize_t y = height - 2; y >= 0; y--) {
        const byte *m = mask + y * width, *below = distance + (y + 1) * width;
        byte *d = distance + y * width;
        for (Py_ssize_t x = 0; x < width; x++) {
            byte next = below[x] < far ? (byte)(below[x] + 1) : (byte)far;
            next = m[x] != m[x + width] ? 1 : next;
            d[x] = next < d[x] ? next : d[x];
        }
    }
}

/* Squares of a row of these distances for both values: that to a pixel of the own value is 0. */
WIDE static void square_both(const byte *distance, const byte *mask, Py_ssize_t width, int limit, uint16_t *to_false,
                             uint16_t *to_true) {
    uint16_t far = (uint16_t)(limit * limit + 1);
    for (Py_ssize_t x = 0; x < width; x++) {
        uint16_t d = distance[x], square = d > limit ? far : (uint16_t)(d * d);
        to_false[limit + x] = mask[x] ? square : 0;
        to_true[limit + x] = mask[x] ? 0 : square;
    }
}

/* boundary_zones(mask, zones, height, width, near, far): 0 up to the distance `near` from a pixel of the other class,
 * 1 up to `far`, 2 beyond; the mask is 0 and 1; levels.boundary_zones. */
static PyObject *boundary_zones(PyObject *self, PyObject *args) {
    PyObject *objects[2];
    Py_ssize_t height, width;
    int near, far;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OOnnii", &objects[0], &objects[1], &height, &width, &near, &far) ||
        check_shape(height, width) < 0)
        return NULL;
    if (near < 1 || far < near || far > MAX_LIMIT)
        return PyErr_Format(PyExc_ValueError, "distances: found %d and %d", near, far);
    Py_ssize_t pixels = height * width;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels}, "bB", "boundary_zones") < 0)
        return NULL;
    const byte *mask = views[0].buf;
    byte *columns = malloc(pixels), *zones = views[1].buf;
    uint16_t *rows[2] = {new_row(width, far), new_row(width, far)};
    int done = columns && rows[0] && rows[1];
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        column_changes(mask, height, width, far + 1, columns);
        for (Py_ssize_t y = 0; y < height; y++) {
            square_both(columns + y * width, mask + y * width, width, far, rows[0], rows[1]);
            for (Py_ssize_t x = 0; x < width; x += BLOCK) {
                uint16_t best[2][BLOCK];
                byte zone[BLOCK];
                for (int value = 0; value < 2; value++) {
                    memcpy(best[value], rows[value] + far + x, sizeof *best);
                    search_block(rows[value] + far + x, far, best[value]);
                }
                for (int i = 0; i < BLOCK; i++) { /* the distance to the own class is 0 */
                    uint16_t distance = best[0][i] > best[1][i] ? best[0][i] : best[1][i];
                    zone[i] = (byte)((distance > near * near) + (distance > far * far));
                }
                memcpy(zones + y * width + x, zone, width - x < BLOCK ? width - x : BLOCK);
            }
        }
        Py_END_ALLOW_THREADS
    }
    free(columns), free(rows[0]), free(rows[1]);
    close_arrays(views, 2);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* What stands in `best` before a search: the row where a level is above the lowest, else 0. Return whether any is. */
WIDE static int wanted(const byte *levels, byte low, const uint16_t *row, int count, uint16_t *best) {
    uint16_t any = 0;
    for (int x = 0; x < count; x++) {
        best[x] = (uint16_t)-(levels[x] > low) & row[x];
        any |= best[x];
    }
    return any != 0;
}

/* sum_by_distance(levels, sources, sums, height, width, limit, low): add levels, less the lowest, to int64 sums by the
 * squared distance to the nearest source, exact up to limit^2 and limit^2 + 1 beyond; sources do not count.
 * structure._sum_by_distance. */
static PyObject *sum_by_distance(PyObject *self, PyObject *args) {
    PyObject *objects[3];
    Py_ssize_t height, width;
    int limit, low;
    Py_buffer views[3];
    if (!PyArg_ParseTuple(args, "OOOnnii", &objects[0], &objects[1], &objects[2], &height, &width, &limit, &low) ||
        check_shape(height, width) < 0)
        return NULL;
    if (limit < 1 || limit > MAX_LIMIT)
        return PyErr_Format(PyExc_ValueError, "limit: found %d; expected 1 to %d", limit, MAX_LIMIT);
    Py_ssize_t pixels = height * width;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, (Py_ssize_t)limit * limit + 2}, "bbQ",
                    "sum_by_distance") < 0)
        return NULL;
    byte *column = malloc(pixels);
    uint16_t *row = new_row(width, limit);
    int64_t *sums = views[2].buf;
    int done = column && row;
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        column_distances(views[1].buf, 1, height, width, limit + 1, column);
        for (Py_ssize_t y = 0; y < height; y++) {
            const byte *level = (const byte *)views[0].buf + y * width;
            square_row(column + y * width, width, limit, row);
            for (Py_ssize_t x = 0; x < width; x += BLOCK) {
                uint16_t best[BLOCK] = {0};
                int count = width - x < BLOCK ? (int)(width - x) : BLOCK;
                if (!wanted(level + x, (byte)low, row + limit + x, count, best))
                    continue; /* most of the background is at the lowest level */
                search_block(row + limit + x, limit, best);
                for (int i = 0; i < count; i++)
                    if (best[i])
                        sums[best[i]] += level[x + i] - low;
            }
        }
        Py_END_ALLOW_THREADS
    }
    free(column), free(row);
    close_arrays(views, 3);
    if (!done)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------------------------ objects */

/* Count the True pixels of at most 2^15, and add up their columns. */
WIDE static void sum_row(const byte *mask, Py_ssize_t width, uint32_t *pixels, uint32_t *columns) {
    uint32_t count = 0, sum = 0;
    for (uint32_t x = 0; x < (uint32_t)width; x++) {
        count += mask[x] != 0;
        sum += mask[x] ? x : 0;
    }
    *pixels = count, *columns = sum;
}

/* centroid_sums(mask, height, width) -> sums of rows and of columns of the True pixels, and their number. */
static PyObject *centroid_sums(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t height, width;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Onn", &object, &height, &width) || check_shape(height, width) < 0)
        return NULL;
    if (open_array(object, &view, height * width, 1, 0, "centroid_sums") < 0)
        return NULL;
    int64_t rows = 0, columns = 0, pixels = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t y = 0; y < height; y++) {
        const byte *m = (const byte *)view.buf + y * width;
        int64_t in_row = 0;
        for (Py_ssize_t first = 0; first < width; first += 1 << 15) {
            uint32_t part = 0, steps = 0;
            sum_row(m + first, width - first < 1 << 15 ? width - first : 1 << 15, &part, &steps);
            in_row += part;
            columns += steps + (int64_t)first * part;
        }
        rows += y * in_row;
        pixels += in_row;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return Py_BuildValue("LLL", (long long)rows, (long long)columns, (long long)pixels);
}

static uint32_t root(uint32_t *parent, uint32_t label) {
    while (parent[label] != label)
        label = parent[label] = parent[parent[label]];
    return label;
}

/* Return how many objects there are, or -1 without memory. Runs of pixels are joined with those they touch in the row
 * above; every joint makes two objects one. */
static int64_t objects_in(const byte *mask, Py_ssize_t height, Py_ssize_t width) {
    Py_ssize_t most = (width + 1) / 2; /* runs in a row */
    Py_ssize_t *runs = malloc(4 * most * sizeof *runs);
    uint32_t *parent = malloc(most * height * sizeof *parent), labels = 0, above_label = 0;
    Py_ssize_t *above = runs, *here = runs + 2 * most, above_count = 0;
    int64_t objects = runs && parent ? 0 : -1;
    for (Py_ssize_t y = 0; objects >= 0 && y < height; y++) {
        const byte *m = mask + y * width, *end = m + width, *at = m;
        Py_ssize_t count = 0, other = 0;
        uint32_t first_label = labels;
        while (at < end) {
            const byte *start = at;
            uint64_t eight; /* background comes in long runs */
            while (start + 8 <= end && (memcpy(&eight, start, 8), eight == 0))
                start += 8;
            while (start < end && !*start)
                start++;
            if (start == end)
                break;
            at = start;
            while (at < end && *at)
                at++;
            here[2 * count] = start - m;
            here[2 * count + 1] = at - m; /* the first pixel behind */
            parent[labels] = labels;
            objects++;
            while (other < above_count && above[2 * other + 1] < here[2 * count])
                other++;
            for (Py_ssize_t i = other; i < above_count && above[2 * i] <= here[2 * count + 1]; i++) {
                uint32_t a = root(parent, above_label + (uint32_t)i), b = root(parent, labels);
                if (a != b) {
                    parent[a < b ? b : a] = a < b ? a : b;
                    objects--;
                }
            }
            count++, labels++;
        }
        Py_ssize_t *swap = above;
        above = here, here = swap, above_count = count, above_label = first_label;
    }
    free(runs), free(parent);
    return objects;
}

/* count_objects(mask, height, width) -> number of objects, whose pixels touch along edges or at corners;
 * scipy.ndimage.label. */
static PyObject *count_objects(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t height, width;
    Py_buffer view;
    int64_t objects;
    if (!PyArg_ParseTuple(args, "Onn", &object, &height, &width) || check_shape(height, width) < 0)
        return NULL;
    if (open_array(object, &view, height * width, 1, 0, "count_objects") < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    objects = objects_in(view.buf, height, width);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return objects < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(objects);
}

/* ------------------------------------------------------------------------------------------------ confidence */

/* Which pixels have a neighbour of the other value along an axis. The row is one pixel in from both ends of `near`. */
WIDE static void near_row(const byte *mask, Py_ssize_t y, Py_ssize_t height, Py_ssize_t width, byte *near) {
    const byte *m = mask + y * width;
    const byte *above = y ? m - width : m, *below = y + 1 < height ? m + width : m;
    for (Py_ssize_t x = 1; x + 1 < width; x++)
        near[x] = (byte)((m[x] != above[x]) | (m[x] != below[x]) | (m[x] != m[x - 1]) | (m[x] != m[x + 1]));
    for (Py_ssize_t x = 0; x < width; x += width > 1 ? width - 1 : 1) /* the ends */
        near[x] = (byte)((m[x] != above[x]) | (m[x] != below[x]) | (x > 0 && m[x] != m[x - 1]) |
                         (x + 1 < width && m[x] != m[x + 1]));
}

WIDE static uint64_t far_sum(const byte *levels, const byte *above, const byte *here, const byte *below,
                             Py_ssize_t width, uint64_t *pixels) {
    uint64_t sum = 0, count = 0;
    for (Py_ssize_t first = 0; first < width; first += 256) { /* whose sum 16 bits hold */
        int length = (int)(width - first < 256 ? width - first : 256);
        const byte *a = above + first, *h = here + first, *b = below + first, *level = levels + first;
        byte far[256];
        uint16_t part = 0, kept = 0;
        for (int x = 0; x < length; x++)
            far[x] = (a[x] | h[x - 1] | h[x] | h[x + 1] | b[x]) ? 0 : 255;
        for (int x = 0; x < length; x++)
            part = (uint16_t)(part + (level[x] & far[x]));
        for (int x = 0; x < length; x++)
            kept = (uint16_t)(kept + (far[x] & 1));
        sum += part, count += kept;
    }
    *pixels += count;
    return sum;
}

/* interior(levels, mask, height, width) -> sum and number of the levels farther than two steps from a pixel of the
 * other value; cases.boundary. */
static PyObject *interior(PyObject *self, PyObject *args) {
    PyObject *objects[2];
    Py_ssize_t height, width;
    Py_buffer views[2];
    if (!PyArg_ParseTuple(args, "OOnn", &objects[0], &objects[1], &height, &width) || check_shape(height, width) < 0)
        return NULL;
    Py_ssize_t pixels = height * width, stride = width + 2;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels}, "bb", "interior") < 0)
        return NULL;
    byte *rows = calloc(4, stride); /* three rows, and one of zeros outside */
    uint64_t sum = 0, count = 0;
    if (rows) {
        Py_BEGIN_ALLOW_THREADS
        const byte *levels = views[0].buf, *mask = views[1].buf, *none = rows + 3 * stride + 1;
        near_row(mask, 0, height, width, rows + 1);
        for (Py_ssize_t y = 0; y < height; y++) {
            byte *below = rows + (y + 1) % 3 * stride + 1;
            if (y + 1 < height)
                near_row(mask, y + 1, height, width, below);
            sum += far_sum(levels + y * width, y ? rows + (y + 2) % 3 * stride + 1 : none, rows + y % 3 * stride + 1,
                           y + 1 < height ? below : none, width, &count);
        }
        Py_END_ALLOW_THREADS
    }
    free(rows);
    close_arrays(views, 2);
    if (!rows)
        return PyErr_NoMemory();
    return Py_BuildValue("KK", (unsigned long long)sum, (unsigned long long)count);
}

/* Move the sums of `side_y` rows down by one row, and return the least sum of `side_x` columns of them. */
WIDE static uint16_t least_patch(const byte *entering, const byte *leaving, Py_ssize_t width, Py_ssize_t side_x,
                                 uint16_t *sums, uint16_t *patches, int full) {
    for (Py_ssize_t x = 0; x < width; x++)
        sums[x] = (uint16_t)(sums[x] + entering[x]);
    if (leaving)
        for (Py_ssize_t x = 0; x < width; x++)
            sums[x] = (uint16_t)(sums[x] - leaving[x]);
    uint16_t least = UINT16_MAX;
    if (!full)
        return least;
    Py_ssize_t count = width - side_x + 1;
    memcpy(patches, sums, count * sizeof *patches);
    for (Py_ssize_t dx = 1; dx < side_x; dx++)
        for (Py_ssize_t x = 0; x < count; x++)
            patches[x] = (uint16_t)(patches[x] + sums[x + dx]);
    for (Py_ssize_t x = 0; x < count; x++)
        least = patches[x] < least ? patches[x] : least;
    return least;
}

/* patch_minimum(levels, height, width, side_y, side_x) -> least sum of a patch of at most 257 pixels;
 * cases._level_sums. */
static PyObject *patch_minimum(PyObject *self, PyObject *args) {
    PyObject *object;
    Py_ssize_t height, width, side_y, side_x;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Onnnn", &object, &height, &width, &side_y, &side_x) || check_shape(height, width) < 0)
        return NULL;
    if (side_y < 1 || side_x < 1 || side_y > height || side_x > width || side_y > 257 / side_x)
        return PyErr_Format(PyExc_ValueError, "a patch of %zd x %zd pixels", side_y, side_x);
    if (open_array(object, &view, height * width, 1, 0, "patch_minimum") < 0)
        return NULL;
    uint16_t *sums = calloc(2 * width, sizeof *sums), least = UINT16_MAX;
    if (sums) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t y = 0; y < height; y++) {
            const byte *row = (const byte *)view.buf + y * width;
            uint16_t own = least_patch(row, y < side_y ? NULL : row - side_y * width, width, side_x, sums,
                                       sums + width, y + 1 >= side_y);
            least = own < least ? own : least;
        }
        Py_END_ALLOW_THREADS
    }
    free(sums);
    PyBuffer_Release(&view);
    return sums ? PyLong_FromLong(least) : PyErr_NoMemory();
}

/* ------------------------------------------------------------------------------------------------ weighted F */

#define REACH 3 /* of the Gaussian, structure.GAUSSIAN_REACH */
#define SPAN 4  /* columns and rows to the nearest pixel of an object in reach of the Gaussian */

/* Give background pixels within REACH columns and rows of the object the error of its nearest pixel: of equally near
 * ones the lowest column, then the lowest row. `step` is the row step to the nearest pixel in the own column, or FAR.
 * `reached` tells where an object is within REACH rows. */
enum { FAR = 127 };

static void spread_row(const byte *mask, const signed char *step, const byte *reached, const double *error,
                       Py_ssize_t stride, Py_ssize_t y, Py_ssize_t width, double *row) {
    memcpy(row, error + y * stride, width * sizeof *row);
    Py_ssize_t until = 0; /* columns up to here have an object within REACH columns */
    for (Py_ssize_t x = 0; x < width; x++) {
        if (x == 0)
            for (Py_ssize_t other = 0; other < REACH && other < width; other++)
                until = reached[y * width + other] ? other + REACH + 1 : until;
        if (x + REACH < width && reached[y * width + x + REACH])
            until = x + 2 * REACH + 1;
        if (x >= until || mask[y * width + x])
            continue;
        int least = INT32_MAX;
        Py_ssize_t left = x < SPAN ? 0 : x - SPAN, right = x + SPAN < width ? x + SPAN : width - 1;
        for (Py_ssize_t other = left; other <= right; other++) {
            int dy = step[y * width + other], dx = (int)(other - x), distance = dx * dx + dy * dy;
            if (dy != FAR && distance < least) {
                least = distance;
                row[x] = error[(y + dy) * stride + other];
            }
        }
    }
}

/* Row step to the nearest True pixel of the column, the upper of two equally near; FAR beyond SPAN. */
WIDE static void column_steps(const byte *mask, Py_ssize_t height, Py_ssize_t width, signed char *step,
                              byte *reached) {
    for (Py_ssize_t y = 0; y < height; y++) /* `reached` holds the distance upward meanwhile */
        for (Py_ssize_t x = 0; x < width; x++) {
            byte above = y ? reached[(y - 1) * width + x] : SPAN + 1;
            byte next = above < SPAN + 1 ? (byte)(above + 1) : SPAN + 1;
            reached[y * width + x] = mask[y * width + x] ? 0 : next;
        }
    for (Py_ssize_t y = height - 1; y >= 0; y--)
        for (Py_ssize_t x = 0; x < width; x++) {
            byte up = reached[y * width + x];
            signed char below = y + 1 < height ? step[(y + 1) * width + x] : FAR;
            byte down = below < 0 || below > SPAN ? SPAN + 1 : (byte)(below + 1);
            step[y * width + x] = up ? (signed char)down : 0; /* the distance downward meanwhile */
        }
    for (Py_ssize_t i = 0; i < height * width; i++) {
        byte up = reached[i], down = (byte)step[i], least = up < down ? up : down;
        reached[i] = least <= REACH;
        step[i] = (signed char)(least > SPAN ? FAR : up <= down ? -(signed char)up : (signed char)down);
    }
}

/* Blur one row: the columns first, then along the row. `rows` are the 2 * REACH + 1 rows around it. */
WIDE static void blur_row(const double *const *rows, const double *g, Py_ssize_t width, double *column, double *out) {
    const double *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3], *e = rows[4], *f = rows[5], *h = rows[6];
    for (Py_ssize_t x = 0; x < width; x++)
        column[x] = g[0] * d[x] + g[1] * (c[x] + e[x]) + g[2] * (b[x] + f[x]) + g[3] * (a[x] + h[x]);
    for (Py_ssize_t x = REACH; x < width - REACH; x++)
        out[x] = g[0] * column[x] + g[1] * (column[x - 1] + column[x + 1]) +
                 g[2] * (column[x - 2] + column[x + 2]) + g[3] * (column[x - 3] + column[x + 3]);
}

/* missed(levels, mask, errors, gaussian, height, width, first, last) -> the sum over the rows first to last - 1 of the
 * errors on the object, or of the blurred errors where these are smaller, in units of 2^-42, as high * 2^21 + low;
 * structure._missed. `errors` are those of the 256 levels, `gaussian` the weights at the distances 0 to REACH. */
static PyObject *missed(PyObject *self, PyObject *args) {
    PyObject *objects[4];
    Py_ssize_t height, width, first, last;
    Py_buffer views[4];
    if (!PyArg_ParseTuple(args, "OOOOnnnn", &objects[0], &objects[1], &objects[2], &objects[3], &height, &width,
                          &first, &last) ||
        check_shape(height, width) < 0)
        return NULL;
    if (first < 0 || last > height)
        return PyErr_Format(PyExc_ValueError, "rows %zd to %zd of %zd", first, last, height);
    Py_ssize_t pixels = height * width, stride = width + 2 * REACH;
    if (open_arrays(objects, views, (Py_ssize_t[]){pixels, pixels, 256, REACH + 1}, "bbqq", "missed") < 0)
        return NULL;
    const byte *levels = views[0].buf, *mask = views[1].buf;
    const double *errors = views[2].buf;
    /* errors of all rows, between zeros; a row of zeros; a ring of spread rows; the columns and the whole of a blur */
    double *error = calloc((size_t)(height + 1 + 2 * REACH + 1 + 2) * stride, sizeof *error);
    signed char *step = malloc(pixels);
    byte *reached = malloc(pixels);
    int64_t high = 0, low = 0;
    int done = error && step && reached;
    if (done) {
        Py_BEGIN_ALLOW_THREADS
        double *zeros = error + height * stride, *ring = zeros + stride, *column = ring + (2 * REACH + 1) * stride;
        double *blurred = column + stride;
        for (Py_ssize_t y = 0; y < height; y++)
            for (Py_ssize_t x = 0; x < width; x++)
                error[y * stride + REACH + x] = mask[y * width + x] ? errors[levels[y * width + x]] : 0.0;
        column_steps(mask, height, width, step, reached);
        for (Py_ssize_t y = first; y < last + REACH; y++) {
            Py_ssize_t lead = y == first ? (first < REACH ? 0 : first - REACH) : y; /* the first time, fill the ring */
            for (; lead <= y; lead++)
                if (lead < height)
                    spread_row(mask, step, reached, error + REACH, stride, lead, width,
                               ring + lead % (2 * REACH + 1) * stride + REACH);
            Py_ssize_t here = y - REACH; /* its rows are in the ring now */
            if (here < first)
                continue;
            const double *rows[2 * REACH + 1];
            for (int i = 0; i <= 2 * REACH; i++) {
                Py_ssize_t row = here - REACH + i;
                rows[i] = row < 0 || row >= height ? zeros : ring + row % (2 * REACH + 1) * stride;
            }
            blur_row(rows, views[3].buf, stride, column, blurred);
            const double *own = error + here * stride;
            for (Py_ssize_t start = REACH; start < stride - REACH; start += 1 << 20) {
                Py_ssize_t end = stride - REACH - start < 1 << 20 ? stride - REACH : start + (1 << 20);
                int64_t part = 0;
                for (Py_ssize_t x = start; x < end; x++)
                    part += (int64_t)((own[x] < blurred[x] ? own[x] : blurred[x]) * 4398046511104.0 + 0.5);
                high += part >> 21, low += part & ((1 << 21) - 1);
            }
        }
        Py_END_ALLOW_THREADS
    }
    free(error), free(step), free(reached);
    close_arrays(views, 4);
    if (!done)
        return PyErr_NoMemory();
    return Py_BuildValue("LL", (long long)high, (long long)low);
}

/* ------------------------------------------------------------------------------------------------ the module */

static PyMethodDef methods[] = {
    {"count_levels", count_levels, METH_VARARGS, NULL},
    {"count_zones", count_zones, METH_VARARGS, NULL},
    {"count_quadrants", count_quadrants, METH_VARARGS, NULL},
    {"distance_squared", distance_squared, METH_VARARGS, NULL},
    {"boundary_zones", boundary_zones, METH_VARARGS, NULL},
    {"sum_by_distance", sum_by_distance, METH_VARARGS, NULL},
    {"centroid_sums", centroid_sums, METH_VARARGS, NULL},
    {"count_objects", count_objects, METH_VARARGS, NULL},
    {"interior", interior, METH_VARARGS, NULL},
    {"patch_minimum", patch_minimum, METH_VARARGS, NULL},
    {"missed", missed, METH_VARARGS, NULL},
    {"tally", tally, METH_VARARGS, NULL},
    {"tally_classes", tally_classes, METH_VARARGS, NULL},
    {"rank_classes", rank_classes, METH_VARARGS, NULL},
    {"winners", winners, METH_VARARGS, NULL},
    {"count_pairs", count_pairs, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddIntConstant(self, "API", API) < 0)
        Py_CLEAR(self);
    return self;
}
