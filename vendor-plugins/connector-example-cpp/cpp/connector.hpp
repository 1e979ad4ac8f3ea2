// A connector: a store behind a pool of threads, as the header of Ondol wants it.
#pragma once

#include "store.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ondol_connector.h"

namespace example {

class Connector {
public:
    // Takes a store and starts so many threads. Throws if the system has no thread or descriptor left.
    Connector(std::unique_ptr<Store> store, std::size_t workers);
    Connector(const Connector &) = delete;
    Connector &operator=(const Connector &) = delete;
    ~Connector();

    int event_fd() const { return event_fd_; }

    enum class Kind { Get, Set, Exists, Delete };

    // Takes a request; false if the connector is closed. `buffers` is for a get, `objects` for a set.
    bool submit(Kind kind, std::uint64_t id, const char *const *keys, const ondol_buffer *buffers,
                const ondol_bytes *objects, std::size_t count);
    std::size_t drain(const ondol_completion **completions, std::size_t capacity);
    // Fails what no thread has begun, waits for what one has.
    void close();

private:
    // A request, which becomes its own completion. All its memory is there from the beginning, so that completing it cannot
    // fail.
    struct Request {
        Kind kind;
        std::vector<std::string> keys;
        std::vector<ondol_buffer> buffers;
        std::vector<ondol_bytes> objects;
        // Objects that are not done.
        std::size_t left;
        std::vector<std::uint8_t> done;
        std::vector<std::uint64_t> lengths;
        std::string error;
        bool has_failed = false;
        ondol_completion completion{};
    };

    // One object of a request.
    struct Job {
        std::shared_ptr<Request> request;
        std::size_t index;
    };

    void work();
    Outcome run(const Request &request, std::size_t index);
    void finish(const Job &job, Outcome outcome);
    void signal();

    std::unique_ptr<Store> store_;
    const int event_fd_;
    std::vector<std::thread> threads_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Job> jobs_;
    bool closed_ = false;
    // Has room for every request that was taken, so that finishing one needs no memory.
    std::vector<std::shared_ptr<Request>> finished_;
    std::size_t unfinished_ = 0;
    // What the last drain gave, which the server may read until the next one.
    std::vector<std::shared_ptr<Request>> drained_;
};

} // namespace example
