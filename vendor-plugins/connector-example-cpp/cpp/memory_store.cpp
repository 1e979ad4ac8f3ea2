#include "store.hpp"

#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace example {
namespace {

class MemoryStore final : public Store {
public:
    Outcome get(const std::string &key, void *data, std::size_t room) override {
        Outcome outcome;
        const Object object = find(key);
        if (object && object->size() <= room) {
            if (!object->empty()) {
                std::memcpy(data, object->data(), object->size());
            }
            outcome.done = true;
            outcome.length = object->size();
        }
        return outcome;
    }

    Outcome set(const std::string &key, const void *data, std::size_t length) override {
        const auto *bytes = static_cast<const char *>(data);
        auto object = std::make_shared<const std::vector<char>>(bytes, bytes + length);
        Outcome outcome;
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        objects_[key] = std::move(object);
        outcome.done = true;
        return outcome;
    }

    Outcome exists(const std::string &key) override {
        Outcome outcome;
        if (const Object object = find(key)) {
            outcome.done = true;
            outcome.length = object->size();
        }
        return outcome;
    }

    Outcome erase(const std::string &key) override {
        Outcome outcome;
        const std::unique_lock<std::shared_mutex> lock(mutex_);
        objects_.erase(key);
        outcome.done = true;
        return outcome;
    }

private:
    // Shared, so that an object can be copied without the lock while another one takes its place.
    using Object = std::shared_ptr<const std::vector<char>>;

    Object find(const std::string &key) {
        const std::shared_lock<std::shared_mutex> lock(mutex_);
        const auto found = objects_.find(key);
        return found == objects_.end() ? nullptr : found->second;
    }

    std::shared_mutex mutex_;
    std::unordered_map<std::string, Object> objects_;
};

} // namespace

std::unique_ptr<Store> memory_store() {
    return std::make_unique<MemoryStore>();
}

} // namespace example
