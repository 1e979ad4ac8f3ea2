// Where objects are kept. A store works on one object at a time and is called by several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace example {

// What became of one object. Failures are values: a store does not throw, save for want of memory.
struct Outcome {
    // Loaded, stored, found, or deleted.
    bool done = false;
    // Bytes of the object, where one was loaded or found.
    std::uint64_t length = 0;
    // Why not, if something failed. That an object is not there is no failure.
    std::string error;
};

class Store {
public:
    virtual ~Store() = default;

    // Loads an object that has at most `room` bytes.
    virtual Outcome get(const std::string &key, void *data, std::size_t room) = 0;
    // Stores an object; nobody ever sees a part of one.
    virtual Outcome set(const std::string &key, const void *data, std::size_t length) = 0;
    virtual Outcome exists(const std::string &key) = 0;
    // Done also if the object was not there.
    virtual Outcome erase(const std::string &key) = 0;
};

// Objects in memory, gone when the store is.
std::unique_ptr<Store> memory_store();

// Objects as files of a directory, which is made if it is not there. Null, and `error` says why, if that fails.
std::unique_ptr<Store> file_store(const std::string &directory, std::string &error);

} // namespace example
