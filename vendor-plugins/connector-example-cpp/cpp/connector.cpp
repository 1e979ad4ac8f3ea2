#include "connector.hpp"

#include <cerrno>
#include <cstddef>
#include <system_error>

#include <sys/eventfd.h>
#include <unistd.h>

namespace example {
namespace {

int new_event_fd() {
    const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) {
        throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    return fd;
}

} // namespace

Connector::Connector(std::unique_ptr<Store> store, std::size_t workers)
    : store_(std::move(store)), event_fd_(new_event_fd()) {
    try {
        threads_.reserve(workers);
        for (std::size_t worker = 0; worker < workers; ++worker) {
            threads_.emplace_back([this] { work(); });
        }
    } catch (...) {
        close();
        ::close(event_fd_);
        throw;
    }
}

Connector::~Connector() {
    close();
    ::close(event_fd_);
}

bool Connector::submit(Kind kind, std::uint64_t id, const char *const *keys, const ondol_buffer *buffers,
                       const ondol_bytes *objects, std::size_t count) {
    auto request = std::make_shared<Request>();
    request->kind = kind;
    request->keys.assign(keys, keys + count);
    if (buffers != nullptr) {
        request->buffers.assign(buffers, buffers + count);
    }
    if (objects != nullptr) {
        request->objects.assign(objects, objects + count);
    }
    request->left = count;
    request->done.assign(count, 0);
    request->lengths.assign(count, 0);

    ondol_completion &completion = request->completion;
    completion.struct_size = sizeof completion;
    completion.request_id = id;
    if (kind != Kind::Set) {
        completion.per_key = request->done.data();
        completion.per_key_count = count;
    }
    if (kind == Kind::Get || kind == Kind::Exists) {
        completion.lengths = request->lengths.data();
        completion.length_count = count;
    }

    std::deque<Job> jobs;
    for (std::size_t index = 0; index < count; ++index) {
        jobs.push_back(Job{request, index});
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (closed_) {
            return false;
        }
        const std::size_t room = finished_.size() + unfinished_ + 1;
        if (finished_.capacity() < room) {
            finished_.reserve(2 * room);
        }
        const std::size_t before = jobs_.size();
        try {
            jobs_.insert(jobs_.end(), jobs.begin(), jobs.end());
        } catch (...) {
            // A request that is not taken must leave nothing behind.
            jobs_.resize(before);
            throw;
        }
        ++unfinished_;
    }
    changed_.notify_all();
    return true;
}

void Connector::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
        if (jobs_.empty()) {
            return;
        }
        const Job job = std::move(jobs_.front());
        jobs_.pop_front();
        const bool is_abandoned = closed_;
        lock.unlock();
        Outcome outcome;
        if (is_abandoned) {
            outcome.error = "closed";
        } else {
            outcome = run(*job.request, job.index);
        }
        lock.lock();
        finish(job, std::move(outcome));
    }
}

Outcome Connector::run(const Request &request, std::size_t index) {
    const std::string &key = request.keys[index];
    Outcome outcome;
    try {
        switch (request.kind) {
        case Kind::Get:
            return store_->get(key, request.buffers[index].data, request.buffers[index].length);
        case Kind::Set:
            return store_->set(key, request.objects[index].data, request.objects[index].length);
        case Kind::Exists:
            return store_->exists(key);
        case Kind::Delete:
            return store_->erase(key);
        }
    } catch (...) {
        // A text so short needs none.
        outcome.error = "no memory";
    }
    return outcome;
}

// Called under the lock.
void Connector::finish(const Job &job, Outcome outcome) {
    Request &request = *job.request;
    request.done[job.index] = outcome.done ? 1 : 0;
    request.lengths[job.index] = outcome.length;
    if (!outcome.error.empty()) {
        request.has_failed = true;
        request.error = std::move(outcome.error);
    }
    if (--request.left > 0) {
        return;
    }
    ondol_completion &completion = request.completion;
    // Loads and deletes tell of each object; a store or a search of which a part failed has failed.
    const bool is_whole = request.kind == Kind::Set || request.kind == Kind::Exists;
    completion.ok = request.has_failed && is_whole ? 0 : 1;
    completion.error = request.error.empty() ? nullptr : request.error.c_str();
    finished_.push_back(job.request);
    --unfinished_;
    signal();
}

void Connector::signal() {
    const std::uint64_t one = 1;
    // It fails only if the counter is full, and then the descriptor is readable.
    static_cast<void>(!::write(event_fd_, &one, sizeof one));
}

std::size_t Connector::drain(const ondol_completion **completions, std::size_t capacity) {
    const std::lock_guard<std::mutex> lock(mutex_);
    drained_.clear();
    drained_.reserve(capacity);
    std::uint64_t signals = 0;
    static_cast<void>(!::read(event_fd_, &signals, sizeof signals));
    const std::size_t count = finished_.size() < capacity ? finished_.size() : capacity;
    for (std::size_t index = 0; index < count; ++index) {
        drained_.push_back(std::move(finished_[index]));
        completions[index] = &drained_.back()->completion;
    }
    finished_.erase(finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count));
    if (!finished_.empty()) {
        signal();
    }
    return count;
}

void Connector::close() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        closed_ = true;
    }
    changed_.notify_all();
    for (std::thread &thread : threads_) {
        if (thread.joinable()) {
            thread.join();
        }
    }
}

} // namespace example
