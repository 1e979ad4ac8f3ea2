// The table that Ondol reads, and the functions in it. No exception leaves any of them.

#include "connector.hpp"
#include "parameters.hpp"

#include <cstdio>
#include <exception>
#include <new>

namespace example {
namespace {

constexpr std::int64_t kWorkers = 4;
constexpr std::int64_t kMostWorkers = 256;

using MakeStore = std::unique_ptr<Store> (*)(const Parameters &parameters, std::string &error);

std::unique_ptr<Store> make_file_store(const Parameters &parameters, std::string &error) {
    const std::string *base_path = parameters.text("base_path");
    if (base_path == nullptr || base_path->empty()) {
        error = "base_path is missing; expected the directory that objects are to be kept in";
        return nullptr;
    }
    return file_store(*base_path, error);
}

std::unique_ptr<Store> make_memory_store(const Parameters &, std::string &) {
    return memory_store();
}

template <MakeStore make_store>
void *open(const char *json, const ondol_open_context *, char *error, std::size_t error_size) {
    std::string reason;
    try {
        Parameters parameters;
        std::int64_t workers = kWorkers;
        if (parameters.parse(json, reason) &&
            parameters.number("num_workers", 1, kMostWorkers, workers, reason)) {
            if (auto store = make_store(parameters, reason)) {
                return new Connector(std::move(store), static_cast<std::size_t>(workers));
            }
        }
        std::snprintf(error, error_size, "%s", reason.c_str());
    } catch (const std::exception &exception) {
        std::snprintf(error, error_size, "%s", exception.what());
    } catch (...) {
        std::snprintf(error, error_size, "unknown exception");
    }
    return nullptr;
}

Connector &connector(void *self) {
    return *static_cast<Connector *>(self);
}

int submit(void *self, Connector::Kind kind, std::uint64_t id, const char *const *keys, const ondol_buffer *buffers,
           const ondol_bytes *objects, std::size_t count) {
    try {
        return connector(self).submit(kind, id, keys, buffers, objects, count) ? 0 : 1;
    } catch (...) {
        return 2;
    }
}

int event_fd(void *self) {
    return connector(self).event_fd();
}

int submit_batch_get(void *self, std::uint64_t id, const char *const *keys, const ondol_buffer *buffers,
                     std::size_t count) {
    return submit(self, Connector::Kind::Get, id, keys, buffers, nullptr, count);
}

int submit_batch_set(void *self, std::uint64_t id, const char *const *keys, const ondol_bytes *objects,
                     std::size_t count) {
    return submit(self, Connector::Kind::Set, id, keys, nullptr, objects, count);
}

int submit_batch_exists(void *self, std::uint64_t id, const char *const *keys, std::size_t count) {
    return submit(self, Connector::Kind::Exists, id, keys, nullptr, nullptr, count);
}

int submit_batch_delete(void *self, std::uint64_t id, const char *const *keys, std::size_t count) {
    return submit(self, Connector::Kind::Delete, id, keys, nullptr, nullptr, count);
}

std::size_t drain_completions(void *self, const ondol_completion **completions, std::size_t capacity) {
    try {
        return connector(self).drain(completions, capacity);
    } catch (...) {
        return 0;
    }
}

void close(void *self) {
    try {
        connector(self).close();
    } catch (...) {
        // A thread that cannot be joined goes on; it still completes what it has.
    }
}

void destroy(void *self) {
    delete &connector(self);
}

const ondol_parameter kFileParameters[] = {
    {"base_path", nullptr, "the directory that objects are kept in, one file each"},
    {"num_workers", "4", "threads, from 1 to 256"},
};

const ondol_parameter kMemoryParameters[] = {
    {"num_workers", "4", "threads, from 1 to 256"},
};

template <MakeStore make_store, std::size_t count>
constexpr ondol_connector row(const char *class_name, const ondol_parameter (&parameters)[count]) {
    return ondol_connector{
        class_name,          parameters,        count, open<make_store>, event_fd, submit_batch_get, submit_batch_set,
        submit_batch_exists, drain_completions, close, destroy,          submit_batch_delete,
    };
}

const ondol_connector kRows[] = {
    row<make_file_store>("FsConnector", kFileParameters),
    row<make_memory_store>("MemoryConnector", kMemoryParameters),
};

const ondol_table kTable = {
    ONDOL_CONNECTOR_ABI, sizeof(ondol_table), sizeof(ondol_connector), sizeof kRows / sizeof kRows[0], kRows,
};

} // namespace
} // namespace example

extern "C" const ondol_table *ONDOL_CONNECTOR_ENTRY(void) {
    return &example::kTable;
}
