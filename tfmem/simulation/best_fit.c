/* Chunks of memory side by side: what best_fit.py has, whose docstrings tell what it does.

   A pool owns its chunks: it holds a reference to each that is in its lists of neighbours, and
   chunks own nothing, so that there are no cycles. */

#define Py_LIMITED_API 0x030A0000 /* one build for all Pythons from 3.10 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define MOST_PADDING (128LL << 20)

typedef struct Pool Pool;

typedef struct Chunk {
    PyObject_HEAD
    long long begin, size;
    char is_free;
    struct Chunk *before, *after;
    Pool *pool; /* NULL once it is a part of another, or its pool is gone */
} Chunk;

typedef struct {
    Chunk **chunks;
    Py_ssize_t count, room;
} Array;

struct Pool {
    PyObject_HEAD
    long long in_use;
    Array free;  /* by bytes, then by address */
    Array first; /* of neighbours; it never becomes a part of another */
};

static PyTypeObject *chunk_type;

static int array_insert(Array *array, Py_ssize_t place, Chunk *chunk)
{
    if (array->count == array->room) {
        Py_ssize_t room = array->room ? 2 * array->room : 16;
        Chunk **chunks = PyMem_Realloc(array->chunks, room * sizeof(Chunk *));
        if (chunks == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        array->chunks = chunks;
        array->room = room;
    }
    Chunk **at = array->chunks + place;
    memmove(at + 1, at, (array->count - place) * sizeof(Chunk *));
    *at = chunk;
    array->count++;
    return 0;
}

/* The first free chunk of so many bytes at that address, or behind it in the order. */
static Py_ssize_t place_of(const Pool *pool, long long size, long long begin)
{
    Py_ssize_t low = 0, high = pool->free.count;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        const Chunk *chunk = pool->free.chunks[middle];
        if (chunk->size < size || (chunk->size == size && chunk->begin < begin))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert_free(Pool *pool, Chunk *chunk)
{
    return array_insert(&pool->free, place_of(pool, chunk->size, chunk->begin), chunk);
}

static void remove_free(Pool *pool, Py_ssize_t place)
{
    Chunk **at = pool->free.chunks + place;
    pool->free.count--;
    memmove(at, at + 1, (pool->free.count - place) * sizeof(Chunk *));
}

/* A chunk behind another, if that is not NULL; the pool has the only reference to it. */
static Chunk *new_chunk(Pool *pool, long long begin, long long size, char is_free, Chunk *before)
{
    Chunk *chunk = PyObject_New(Chunk, chunk_type);
    if (chunk == NULL)
        return NULL;
    chunk->begin = begin;
    chunk->size = size;
    chunk->is_free = is_free;
    chunk->pool = pool;
    chunk->before = before;
    chunk->after = before == NULL ? NULL : before->after;
    if (chunk->after != NULL)
        chunk->after->before = chunk;
    if (before != NULL)
        before->after = chunk;
    else if (array_insert(&pool->first, pool->first.count, chunk) < 0) {
        Py_DECREF(chunk);
        return NULL;
    }
    if (is_free && insert_free(pool, chunk) < 0)
        return NULL;
    return chunk;
}

/* Makes two neighbours one, the first. */
static void join(Chunk *first, Chunk *second)
{
    first->size += second->size;
    first->after = second->after;
    if (first->after != NULL)
        first->after->before = first;
    second->before = second->after = NULL;
    second->pool = NULL;
    Py_DECREF(second);
}

/* A borrowed reference, or NULL with an error set. */
static Chunk *allocate(Pool *pool, long long size)
{
    Py_ssize_t place = place_of(pool, size, 0);
    if (place == pool->free.count) {
        PyObject *done = PyObject_CallMethod((PyObject *)pool, "extend", "L", size);
        if (done == NULL)
            return NULL;
        Py_DECREF(done);
        place = place_of(pool, size, 0);
        if (place == pool->free.count) {
            PyErr_SetString(PyExc_IndexError, "extend() has laid no chunk that is large enough.");
            return NULL;
        }
    }
    Chunk *chunk = pool->free.chunks[place];
    long long rest = chunk->size - size;
    remove_free(pool, place);
    chunk->is_free = 0;
    if (rest >= size || rest >= MOST_PADDING) {
        chunk->size = size;
        if (new_chunk(pool, chunk->begin + size, rest, 1, chunk) == NULL)
            return NULL;
    }
    pool->in_use += chunk->size;
    return chunk;
}

static int release(Pool *pool, PyObject *object)
{
    Chunk *chunk = (Chunk *)object;
    if (Py_TYPE(object) != chunk_type) {
        PyErr_Format(PyExc_TypeError, "Not a chunk: %R.", object);
        return -1;
    }
    if (chunk->pool != pool || chunk->is_free) {
        PyErr_Format(PyExc_ValueError, "Released twice, or elsewhere: %R.", object);
        return -1;
    }
    pool->in_use -= chunk->size;
    chunk->is_free = 1;
    Chunk *after = chunk->after, *before = chunk->before;
    if (after != NULL && after->is_free) {
        remove_free(pool, place_of(pool, after->size, after->begin));
        join(chunk, after);
    }
    if (before != NULL && before->is_free) {
        remove_free(pool, place_of(pool, before->size, before->begin));
        join(before, chunk);
        chunk = before;
    }
    return insert_free(pool, chunk);
}

static PyObject *pool_lay(Pool *pool, PyObject *spans)
{
    PyObject *made = PyList_New(0), *each = PyObject_GetIter(spans), *span;
    Chunk *last = NULL;
    if (made == NULL || each == NULL)
        goto failed;
    while ((span = PyIter_Next(each)) != NULL) {
        long long begin, size;
        int is_free, is_read = PyArg_ParseTuple(span, "LLp", &begin, &size, &is_free);
        Py_DECREF(span);
        if (!is_read)
            goto failed;
        if (last != NULL && last->begin + last->size != begin)
            last = NULL;
        last = new_chunk(pool, begin, size, (char)is_free, last);
        if (last == NULL || PyList_Append(made, (PyObject *)last) < 0)
            goto failed;
        if (!is_free)
            pool->in_use += size;
    }
    if (PyErr_Occurred())
        goto failed;
    Py_DECREF(each);
    return made;
failed:
    Py_XDECREF(each);
    Py_XDECREF(made);
    return NULL;
}

static PyObject *pool_has(Pool *pool, PyObject *size)
{
    long long least = PyLong_AsLongLong(size);
    if (least == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t count = pool->free.count;
    return PyBool_FromLong(count && pool->free.chunks[count - 1]->size >= least);
}

static PyObject *pool_free_places(Pool *pool, void *unused)
{
    PyObject *places = PyTuple_New(pool->free.count);
    for (Py_ssize_t i = 0; places != NULL && i < pool->free.count; i++) {
        const Chunk *chunk = pool->free.chunks[i];
        PyObject *place = Py_BuildValue("(LL)", chunk->size, chunk->begin);
        if (place == NULL)
            Py_CLEAR(places);
        else
            PyTuple_SetItem(places, i, place);
    }
    return places;
}

static PyObject *pool_extend(Pool *pool, PyObject *size)
{
    PyErr_SetNone(PyExc_NotImplementedError);
    return NULL;
}

static PyObject *pool_allocate(Pool *pool, PyObject *size)
{
    long long nbytes = PyLong_AsLongLong(size);
    if (nbytes == -1 && PyErr_Occurred())
        return NULL;
    PyObject *chunk = (PyObject *)allocate(pool, nbytes);
    Py_XINCREF(chunk);
    return chunk;
}

static PyObject *pool_release(Pool *pool, PyObject *chunk)
{
    if (release(pool, chunk) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Serves one request; 1 if the bound is reached, 0 if not, -1 if only the caller can serve it,
   -2 with an error set. */
static int serve(Pool *pool, PyObject *request, PyObject *chunks, long long *most, double bound)
{
    PyObject *number = PyTuple_GetItem(request, 0), *size = PyTuple_GetItem(request, 1);
    long long nbytes = size == NULL ? -1 : PyLong_AsLongLong(size);
    if (nbytes == -1 && PyErr_Occurred())
        return -2;
    if (nbytes > 0) {
        PyObject *chunk = (PyObject *)allocate(pool, nbytes);
        if (chunk == NULL || PyDict_SetItem(chunks, number, chunk) < 0)
            return -2;
        if (pool->in_use <= *most)
            return 0;
        *most = pool->in_use;
        return (double)*most >= bound;
    }
    PyObject *chunk = PyDict_GetItemWithError(chunks, number);
    if (chunk == NULL && PyErr_Occurred())
        return -2;
    if (nbytes < 0 || chunk == NULL)
        return -1;
    return release(pool, chunk) < 0 || PyDict_DelItem(chunks, number) < 0 ? -2 : 0;
}

static PyObject *pool_serve(Pool *pool, PyObject *args)
{
    PyObject *requests, *chunks;
    Py_ssize_t position;
    long long most;
    double bound;
    if (!PyArg_ParseTuple(args, "O!O!nLd", &PyTuple_Type, &requests, &PyDict_Type, &chunks,
                          &position, &most, &bound))
        return NULL;
    int outcome = 0;
    for (Py_ssize_t count = PyTuple_Size(requests); position < count && !outcome; position++)
        outcome = serve(pool, PyTuple_GetItem(requests, position), chunks, &most, bound);
    if (outcome == -2)
        return NULL;
    return Py_BuildValue("(nL)", position - (outcome == -1), most);
}

static void pool_dealloc(Pool *pool)
{
    PyTypeObject *type = Py_TYPE(pool);
    for (Py_ssize_t i = 0; i < pool->first.count; i++)
        for (Chunk *chunk = pool->first.chunks[i], *after; chunk != NULL; chunk = after) {
            after = chunk->after;
            chunk->before = chunk->after = NULL;
            chunk->pool = NULL;
            Py_DECREF(chunk);
        }
    PyMem_Free(pool->first.chunks);
    PyMem_Free(pool->free.chunks);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(pool);
    Py_DECREF(type);
}

static void chunk_dealloc(PyObject *chunk)
{
    PyTypeObject *type = Py_TYPE(chunk);
    PyObject_Free(chunk);
    Py_DECREF(type);
}

static PyObject *chunk_repr(const Chunk *chunk)
{
    return PyUnicode_FromFormat("Chunk(begin=%lld, size=%lld, is_free=%s)", chunk->begin,
                                chunk->size, chunk->is_free ? "True" : "False");
}

static PyMemberDef chunk_members[] = {
    {"begin", T_LONGLONG, offsetof(Chunk, begin), READONLY, NULL},
    {"size", T_LONGLONG, offsetof(Chunk, size), READONLY, NULL},
    {"is_free", T_BOOL, offsetof(Chunk, is_free), READONLY, NULL},
    {NULL},
};

static PyType_Slot chunk_slots[] = {
    {Py_tp_doc, "Bytes side by side, handed out or free."},
    {Py_tp_dealloc, chunk_dealloc},
    {Py_tp_repr, chunk_repr},
    {Py_tp_members, chunk_members},
    {0, NULL},
};

static PyType_Spec chunk_spec = {
    "tfmem.simulation._best_fit.Chunk", sizeof(Chunk), 0, Py_TPFLAGS_DEFAULT, chunk_slots,
};

static PyMethodDef pool_methods[] = {
    {"lay", (PyCFunction)pool_lay, METH_O, NULL},
    {"has", (PyCFunction)pool_has, METH_O, NULL},
    {"extend", (PyCFunction)pool_extend, METH_O, NULL},
    {"allocate", (PyCFunction)pool_allocate, METH_O, NULL},
    {"release", (PyCFunction)pool_release, METH_O, NULL},
    {"serve", (PyCFunction)pool_serve, METH_VARARGS, NULL},
    {NULL},
};

static PyMemberDef pool_members[] = {
    {"in_use", T_LONGLONG, offsetof(Pool, in_use), 0, NULL},
    {NULL},
};

static PyGetSetDef pool_getters[] = {
    {"free_places", (getter)pool_free_places, NULL, NULL, NULL},
    {NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_doc, "Chunks, of which free ones are handed out: best_fit.py has the docstrings."},
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_methods, pool_methods},
    {Py_tp_members, pool_members},
    {Py_tp_getset, pool_getters},
    {0, NULL},
};

static PyType_Spec pool_spec = {
    "tfmem.simulation._best_fit.BestFit", sizeof(Pool), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, pool_slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_best_fit", "best_fit.py in C.", -1, NULL,
};

PyMODINIT_FUNC PyInit__best_fit(void)
{
    PyObject *made = PyModule_Create(&module), *pool_type = PyType_FromSpec(&pool_spec);
    chunk_type = (PyTypeObject *)PyType_FromSpec(&chunk_spec);
    if (made == NULL || pool_type == NULL || chunk_type == NULL ||
        PyModule_AddIntConstant(made, "MOST_PADDING", MOST_PADDING) < 0 ||
        PyModule_AddType(made, chunk_type) < 0 ||
        PyModule_AddType(made, (PyTypeObject *)pool_type) < 0)
        return NULL;
    return made;
}
