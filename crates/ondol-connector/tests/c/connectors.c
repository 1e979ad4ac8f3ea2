/*
 * Connectors in C for tests: a few that behave, and one for each way in which a connector can be wrong. They do at once what they are
 * asked for, in the thread that asks, and write what is called into the file of the parameter "log".
 *
 * Tables that cannot be read are made by macros: TABLE_VERSION, TABLE_SIZE, ROW_SIZE, ROW_COUNT, ROWS, NO_TABLE.
 */
#include "ondol_connector.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MOST = 256, FILLED = 0xab };

enum mode {
    GOOD,
    NULL_LISTS,
    SHORT_LISTS,
    LONG_LISTS,
    GARBAGE_IDS,
    TWICE,
    NEVER,
    NULL_COMPLETION,
    SMALL_COMPLETION,
    TOO_MANY,
    REFUSE,
    BEYOND,
    NO_UTF8,
    HALF_FAILED
};

struct connector {
    enum mode mode;
    int fd;
    char log[512];
    pthread_mutex_t mutex;
    ondol_completion done[MOST];
    size_t first, last;
    uint8_t per_key[MOST];
    uint64_t lengths[MOST];
};

static void note(const struct connector *self, const char *what) {
    FILE *file = self->log[0] ? fopen(self->log, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", what);
        fclose(file);
    }
}

static void *open_as(enum mode mode, const char *json) {
    struct connector *self = calloc(1, sizeof *self);
    const char *log = strstr(json, "\"log\":\"");
    size_t index;
    self->mode = mode;
    self->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&self->mutex, NULL);
    if (log) {
        log += strlen("\"log\":\"");
        for (index = 0; log[index] && log[index] != '"' && index < sizeof self->log - 1; index++) {
            self->log[index] = log[index];
        }
    }
    for (index = 0; index < MOST; index++) {
        self->per_key[index] = 1;
        self->lengths[index] = 1;
    }
    return self;
}

static int event_fd(void *self) {
    return ((struct connector *)self)->fd;
}

static int complete(struct connector *self, uint64_t id, size_t count, int has_lengths) {
    const uint64_t one = 1;
    ondol_completion *done;
    int times = self->mode == TWICE ? 2 : 1;
    if (self->mode == REFUSE) {
        return 7;
    }
    pthread_mutex_lock(&self->mutex);
    while (times-- > 0 && self->mode != NEVER) {
        done = &self->done[self->last++ % MOST];
        memset(done, 0, sizeof *done);
        done->struct_size = self->mode == SMALL_COMPLETION ? 8 : sizeof *done;
        done->request_id = self->mode == GARBAGE_IDS ? id + 1000000 : id;
        done->ok = self->mode != HALF_FAILED;
        if (self->mode == NO_UTF8) {
            done->ok = 0;
            done->error = "\xff\xfe";
        }
        if (self->mode == HALF_FAILED) {
            done->error = "half of it";
        }
        if (self->mode != NULL_LISTS) {
            done->per_key = self->per_key;
            done->per_key_count = count;
        }
        if (self->mode == SHORT_LISTS) {
            done->per_key_count = count - 1;
        }
        if (self->mode == LONG_LISTS) {
            /* So long that reading all of it would end the process. */
            done->per_key_count = (size_t)-1;
        }
        if (self->mode == BEYOND && has_lengths) {
            self->lengths[0] = 1u << 20;
            done->lengths = self->lengths;
            done->length_count = count;
        }
    }
    pthread_mutex_unlock(&self->mutex);
    return write(self->fd, &one, sizeof one) < 0;
}

static int get(void *self, uint64_t id, const char *const *keys, const ondol_buffer *buffers, size_t count) {
    size_t index;
    (void)keys;
    for (index = 0; index < count; index++) {
        memset(buffers[index].data, FILLED, buffers[index].length);
    }
    return complete(self, id, count, 1);
}

static int set(void *self, uint64_t id, const char *const *keys, const ondol_bytes *objects, size_t count) {
    size_t index;
    unsigned sum = 0;
    char line[300];
    for (index = 0; index < count; index++) {
        const unsigned char *bytes = objects[index].data;
        size_t at;
        for (at = 0; at < objects[index].length; at++) {
            sum += bytes[at];
        }
        snprintf(line, sizeof line, "set %s %zu %u", keys[index], objects[index].length, sum);
        note(self, line);
    }
    return complete(self, id, count, 0);
}

static int exists(void *self, uint64_t id, const char *const *keys, size_t count) {
    (void)keys;
    return complete(self, id, count, 1);
}

static size_t drain(void *opaque, const ondol_completion **completions, size_t capacity) {
    struct connector *self = opaque;
    uint64_t signals;
    size_t count = 0;
    if (read(self->fd, &signals, sizeof signals) < 0) {
        /* Nothing to reset. */
    }
    pthread_mutex_lock(&self->mutex);
    while (count < capacity && self->first < self->last) {
        completions[count++] = &self->done[self->first++ % MOST];
        if (self->mode == NULL_COMPLETION) {
            completions[count - 1] = NULL;
        }
    }
    pthread_mutex_unlock(&self->mutex);
    return self->mode == TOO_MANY && count > 0 ? capacity + 1 : count;
}

static void close_connector(void *self) {
    note(self, "close");
}

static void destroy(void *opaque) {
    struct connector *self = opaque;
    note(self, "destroy");
    if (self->fd >= 0) {
        close(self->fd);
    }
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

#define OPEN(name, mode)                                                                                         \
    static void *name(const char *json, const ondol_open_context *context, char *error, size_t size) {           \
        (void)error;                                                                                             \
        (void)size;                                                                                              \
        return context->struct_size >= sizeof *context ? open_as(mode, json) : NULL;                             \
    }

OPEN(open_good, GOOD)
OPEN(open_null_lists, NULL_LISTS)
OPEN(open_short_lists, SHORT_LISTS)
OPEN(open_long_lists, LONG_LISTS)
OPEN(open_garbage_ids, GARBAGE_IDS)
OPEN(open_twice, TWICE)
OPEN(open_never, NEVER)
OPEN(open_null_completion, NULL_COMPLETION)
OPEN(open_small_completion, SMALL_COMPLETION)
OPEN(open_too_many, TOO_MANY)
OPEN(open_refuse, REFUSE)
OPEN(open_beyond, BEYOND)
OPEN(open_no_utf8, NO_UTF8)
OPEN(open_half_failed, HALF_FAILED)

static void *open_no_fd(const char *json, const ondol_open_context *context, char *error, size_t size) {
    struct connector *self = open_good(json, context, error, size);
    close(self->fd);
    self->fd = -1;
    return self;
}

static void *open_fails(const char *json, const ondol_open_context *context, char *error, size_t size) {
    (void)json;
    (void)context;
    /* Without a NUL. */
    memset(error, 'x', size);
    return NULL;
}

static const ondol_parameter parameters[] = {
    {"log", NULL, "where to write what is called"},
    {"depth", "3", NULL},
};

#define ROW(class_name, open)                                                                                    \
    {class_name, parameters, 2, open, event_fd, get, set, exists, drain, close_connector, destroy, exists}

static const ondol_connector rows[] = {
    ROW("Good", open_good),
    ROW("NullLists", open_null_lists),
    ROW("ShortLists", open_short_lists),
    ROW("LongLists", open_long_lists),
    ROW("GarbageIds", open_garbage_ids),
    ROW("Twice", open_twice),
    ROW("Never", open_never),
    ROW("NullCompletion", open_null_completion),
    ROW("SmallCompletion", open_small_completion),
    ROW("TooMany", open_too_many),
    ROW("Refuse", open_refuse),
    ROW("Beyond", open_beyond),
    ROW("NoUtf8", open_no_utf8),
    ROW("HalfFailed", open_half_failed),
    ROW("NoFd", open_no_fd),
    ROW("Fails", open_fails),
    /* The optional function, and then required ones. */
    {"NoDelete", NULL, 0, open_good, event_fd, get, set, exists, drain, close_connector, destroy, NULL},
    {"NoDrain", NULL, 0, open_good, event_fd, get, set, exists, NULL, close_connector, NULL, NULL},
};

static const ondol_connector nameless[] = {ROW(NULL, open_good)};
static const ondol_connector namesakes[] = {ROW("Same", open_good), ROW("Same", open_good)};

#ifndef TABLE_VERSION
#define TABLE_VERSION ONDOL_CONNECTOR_ABI
#endif
#ifndef TABLE_SIZE
#define TABLE_SIZE sizeof(ondol_table)
#endif
#ifndef ROW_SIZE
#define ROW_SIZE sizeof(ondol_connector)
#endif
#ifndef ROWS
#define ROWS rows
#endif
#ifndef ROW_COUNT
#define ROW_COUNT (sizeof ROWS / sizeof ROWS[0])
#endif

static const ondol_table table = {TABLE_VERSION, TABLE_SIZE, ROW_SIZE, ROW_COUNT, ROWS};

#ifndef NO_TABLE
#define NO_TABLE 0
#endif

const ondol_table *ONDOL_CONNECTOR_ENTRY(void) {
    (void)nameless;
    (void)namesakes;
    return NO_TABLE ? NULL : &table;
}
