/*
 * Native connectors for Ondol: a storage backend in C, or in any language that can export C functions.
 *
 * A connector stores, finds, loads and deletes objects by name, in batches. Everything else of a storage backend (locks,
 * usage, time-outs, health, the events that the server waits for) is made by Ondol around it.
 *
 * How it is found
 *   A library exports one function, ondol_connector_table(), which returns a table of connectors ("rows"). The library is
 *   either a shared one, named in the configuration,
 *       {"type": "native_plugin", "module_path": "/path/to/libmine.so", "class_name": "MyConnector", ...}
 *   or it is linked in and its function is given to NativeConnectorFactory::c(). Several libraries that are linked into one
 *   program need a function name each: define ONDOL_CONNECTOR_ENTRY before this header is included.
 *
 * Threads
 *   open, event_fd, close and destroy are called once each, in this order: open and event_fd by one thread; close by any,
 *   also while other calls run; destroy when no other call runs and none will follow. submit_* may be called by several
 *   threads at once, and while drain_completions runs. drain_completions is called by one thread at a time.
 *   submit_* and drain_completions return at once; the work is done by threads of the connector's own.
 *
 * Requests
 *   The server numbers each request with a `request_id` that it has never used before with this connector. A request that
 *   was taken (submit_* returned 0) is completed exactly once, by a completion with this number; it may be drained before
 *   submit_* has returned. A request that was not taken is never completed.
 *
 * Memory
 *   Keys, and the arrays that hold them and the buffers, are valid until submit_* returns: copy what is needed later. The
 *   bytes that the buffers point to stay valid, and belong to the connector, until the completion of the request has been
 *   drained. From then on the connector must not touch them: to complete a request is to give its memory back.
 *   After close has returned it touches no buffer at all. A request that is never completed keeps its memory for ever.
 *
 * Failures
 *   Nothing may unwind out of a function of the connector: no C++ exception, no Rust panic, no longjmp. Whatever fails is
 *   said by a return value or in a completion. Texts are UTF-8, end with NUL, and are cut at the lengths below.
 *
 * Versions
 *   ONDOL_CONNECTOR_ABI changes when something here changes its meaning, and then connectors are compiled anew. Structures that
 *   begin with `struct_size`, and rows, may become longer without that: who makes one says how long it is, who reads it
 *   reads no further, and what is not there counts as 0. The other structures never change within a version.
 *
 * Everything here is for 64-bit Linux.
 */
#ifndef ONDOL_CONNECTOR_H
#define ONDOL_CONNECTOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version that this header describes. */
#define ONDOL_CONNECTOR_ABI 1u

/* The longest texts that are read, in bytes without the NUL. A name that is longer is refused, other texts are cut. */
#define ONDOL_CONNECTOR_MAX_NAME 255u
#define ONDOL_CONNECTOR_MAX_TEXT 1023u
/* The most rows in a table, and the most parameters in a row. */
#define ONDOL_CONNECTOR_MAX_ROWS 256u

/* The exported function. */
#ifndef ONDOL_CONNECTOR_ENTRY
#define ONDOL_CONNECTOR_ENTRY ondol_connector_table
#endif

/* A parameter of a connector, for those who configure it. */
typedef struct ondol_parameter {
    /* Its name in the JSON. */
    const char *name;
    /* What stands for it if it is not given, in words; NULL if it must be given. */
    const char *default_value;
    /* What it means, with its unit; may be NULL. */
    const char *summary;
} ondol_parameter;

/* A part of the server's memory, for those who register memory with a device. Buffers lie in such parts, or in memory of the
 * server's own that is not listed. A part stays mapped, and its file open, until close returns. */
typedef struct ondol_mapping {
    void *address;
    /* Bytes. */
    size_t length;
    /* The file that is mapped, from its beginning. */
    int fd;
} ondol_mapping;

/* What a connector is told when it is opened. Valid until open returns. */
typedef struct ondol_open_context {
    /* Bytes of this structure, as the server knows it. */
    size_t struct_size;
    /* The name of the backend in logs and figures, such as "native#0". */
    const char *name;
    /* The mappings of the server's memory; NULL if there are none, as in a check. */
    const ondol_mapping *mappings;
    size_t mapping_count;
} ondol_open_context;

/* Memory to load into. `data` is not NULL, also if `length` is 0. */
typedef struct ondol_buffer {
    void *data;
    /* Bytes that fit. */
    size_t length;
} ondol_buffer;

/* Bytes to store. `data` is not NULL, also if `length` is 0. */
typedef struct ondol_bytes {
    const void *data;
    size_t length;
} ondol_bytes;

/* What became of a request. The connector owns it and all that it points to, and keeps both until drain_completions is
 * called again or destroy is. */
typedef struct ondol_completion {
    /* Bytes of this structure, as the connector knows it. */
    size_t struct_size;
    /* The number of the request. */
    uint64_t request_id;
    /* 1 if the request was carried out, 0 if it failed. After a failure nothing else here counts but the error: no key
     * was found or loaded, and none is known to be stored or deleted. */
    uint32_t ok;
    /* Why it failed, or why some keys did; may be NULL. */
    const char *error;
    /* For each key, in the order of the request, 1 or 0; NULL if it is 1 for all.
     *   get: the object was loaded, whole. 0: it is not there, does not fit, or (with an error text) could not be read.
     *   exists: the object is there.
     *   delete: the object is not there any more, or never was. 0: it may still be there.
     *   set: not used, all or nothing was stored. */
    const uint8_t *per_key;
    /* Entries of per_key: as many as the request has keys. */
    size_t per_key_count;
    /* For each key the bytes that were loaded (get) or that the object has (exists); NULL if the connector does not say.
     * What was loaded then counts as having filled its buffer. Entries of keys that are 0 in per_key do not count. */
    const uint64_t *lengths;
    /* Entries of lengths: as many as the request has keys. */
    size_t length_count;
} ondol_completion;

/* A connector that can be opened. All functions but submit_batch_delete must be there. `self` is what open returned. */
typedef struct ondol_connector {
    /* Its name, the `class_name` of a configuration. */
    const char *class_name;
    /* What may be configured, for `ondol plugins`; may be NULL. */
    const ondol_parameter *parameters;
    size_t parameter_count;

    /* Opens a connector with the JSON object of its parameters. NULL if it cannot be opened; why not is then written to
     * `error`, with a NUL, in at most `error_size` bytes. */
    void *(*open)(const char *json_parameters, const ondol_open_context *context, char *error, size_t error_size);

    /* A descriptor that is readable while there are completions to drain; an eventfd or a pipe. The same until destroy, the
     * connector's own. */
    int (*event_fd)(void *self);

    /* Loads objects into buffers; one that is longer than its buffer is not loaded.
     * `keys` are `count` strings that end with NUL, in the form model@rank8@group@hash[@salt]; count is at least 1. 0 if the
     * request was taken, anything else if it was not; so for all submits. */
    int (*submit_batch_get)(void *self, uint64_t request_id, const char *const *keys, const ondol_buffer *buffers, size_t count);

    /* Stores objects, all or none of them; after a failure some may be there, but only whole ones. An object becomes
     * visible when it is whole. One that is there already is kept or replaced. */
    int (*submit_batch_set)(void *self, uint64_t request_id, const char *const *keys, const ondol_bytes *objects, size_t count);

    /* Asks which objects are there. */
    int (*submit_batch_exists)(void *self, uint64_t request_id, const char *const *keys, size_t count);

    /* Makes the descriptor unreadable, then gives completions: writes at most `capacity` pointers to `completions` and
     * returns how many. It is called again until it returns less than `capacity`. The order of completions is free. */
    size_t (*drain_completions)(void *self, const ondol_completion **completions, size_t capacity);

    /* Ends the connector: refuses new requests, completes those that are pending, with an error if need be, and ends its threads.
     * Completions can still be drained. */
    void (*close)(void *self);

    /* Frees the connector and closes its descriptor. The last call. It is not made if a request was never completed. */
    void (*destroy)(void *self);

    /* Deletes objects. May be NULL: then nothing is ever deleted, which Ondol says in its log and figures. */
    int (*submit_batch_delete)(void *self, uint64_t request_id, const char *const *keys, size_t count);
} ondol_connector;

/* The table. */
typedef struct ondol_table {
    /* ONDOL_CONNECTOR_ABI. Looked at before anything else. */
    uint32_t abi_version;
    /* sizeof(ondol_table). */
    uint32_t struct_size;
    /* sizeof(ondol_connector). */
    size_t row_size;
    /* How many rows there are. */
    size_t row_count;
    /* The rows. */
    const ondol_connector *rows;
} ondol_table;

/* The table of this library. It never changes and stays for as long as the library is loaded. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const ondol_table *ONDOL_CONNECTOR_ENTRY(void);

#ifdef __cplusplus
}
#endif

#endif
