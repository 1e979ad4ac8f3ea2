#include "store.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace example {
namespace {

constexpr const char *kSuffix = ".data";
// A draft is named after its process. No object begins with a dot.
constexpr const char *kDraftPrefix = ".draft-";

// Whether an error says that there is no such object. One whose name is too long for a file was never stored.
bool is_absent(int code) {
    return code == ENOENT || code == ENAMETOOLONG;
}

std::string message(const char *what, const std::string &path, int code) {
    return std::string(what) + " " + path + ": " + std::generic_category().message(code);
}

// A descriptor that is closed.
class File {
public:
    explicit File(int fd) : fd_(fd) {}
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    ~File() {
        if (fd_ >= 0) {
            ::close(fd_);
        }
    }
    int fd() const { return fd_; }
    // Closes now; 0, or what went wrong.
    int finish() {
        const int fd = fd_;
        fd_ = -1;
        return ::close(fd) == 0 ? 0 : errno;
    }

private:
    int fd_;
};

// Bytes read until the end or until `room` is full; -1 with errno set if that fails.
ssize_t read_all(int fd, char *data, std::size_t room) {
    std::size_t done = 0;
    while (done < room) {
        const ssize_t count = ::read(fd, data + done, room - done);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return -1;
        }
        if (count == 0) {
            break;
        }
        done += static_cast<std::size_t>(count);
    }
    return static_cast<ssize_t>(done);
}

bool write_all(int fd, const char *data, std::size_t length) {
    std::size_t done = 0;
    while (done < length) {
        const ssize_t count = ::write(fd, data + done, length - done);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            return false;
        }
        done += static_cast<std::size_t>(count);
    }
    return true;
}

class FileStore final : public Store {
public:
    explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

    Outcome get(const std::string &key, void *data, std::size_t room) override {
        Outcome outcome;
        const std::string path = path_of(key);
        const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (file.fd() < 0) {
            if (!is_absent(errno)) {
                outcome.error = message("cannot open", path, errno);
            }
            return outcome;
        }
        struct stat status {};
        if (::fstat(file.fd(), &status) != 0) {
            outcome.error = message("cannot look at", path, errno);
            return outcome;
        }
        const auto length = static_cast<std::uint64_t>(status.st_size);
        if (length > room) {
            return outcome;
        }
        const ssize_t count = read_all(file.fd(), static_cast<char *>(data), length);
        if (count < 0) {
            outcome.error = message("cannot read", path, errno);
        } else if (static_cast<std::uint64_t>(count) != length) {
            outcome.error = path + " became shorter while it was read";
        } else {
            outcome.done = true;
            outcome.length = length;
        }
        return outcome;
    }

    Outcome set(const std::string &key, const void *data, std::size_t length) override {
        const Outcome there = exists(key);
        Outcome outcome;
        if (there.done && there.length == length) {
            outcome.done = true;
            return outcome;
        }
        const std::string draft = directory_ + "/" + kDraftPrefix + std::to_string(::getpid()) + "-" +
                                  std::to_string(drafts_.fetch_add(1));
        if (write_draft(draft, static_cast<const char *>(data), length, outcome)) {
            const std::string path = path_of(key);
            if (::rename(draft.c_str(), path.c_str()) == 0) {
                outcome.done = true;
                return outcome;
            }
            outcome.error = message("cannot name", path, errno);
        }
        ::unlink(draft.c_str());
        return outcome;
    }

    Outcome exists(const std::string &key) override {
        Outcome outcome;
        const std::string path = path_of(key);
        struct stat status {};
        if (::stat(path.c_str(), &status) == 0) {
            outcome.done = S_ISREG(status.st_mode);
            outcome.length = static_cast<std::uint64_t>(status.st_size);
        } else if (!is_absent(errno)) {
            outcome.error = message("cannot look at", path, errno);
        }
        return outcome;
    }

    Outcome erase(const std::string &key) override {
        Outcome outcome;
        const std::string path = path_of(key);
        if (::unlink(path.c_str()) == 0 || is_absent(errno)) {
            outcome.done = true;
        } else {
            outcome.error = message("cannot remove", path, errno);
        }
        return outcome;
    }

private:
    // No two keys have the same file: what may not stand in a name is written as % and two digits.
    std::string path_of(const std::string &key) const {
        std::string path = directory_ + "/";
        for (std::size_t at = 0; at < key.size(); ++at) {
            const char byte = key[at];
            if (byte == '/') {
                path += "%2F";
            } else if (byte == '%') {
                path += "%25";
            } else if (byte == '.' && at == 0) {
                path += "%2E";
            } else {
                path += byte;
            }
        }
        return path + kSuffix;
    }

    static bool write_draft(const std::string &draft, const char *data, std::size_t length, Outcome &outcome) {
        File file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (file.fd() < 0) {
            outcome.error = message("cannot make", draft, errno);
            return false;
        }
        if (!write_all(file.fd(), data, length)) {
            outcome.error = message("cannot write", draft, errno);
            return false;
        }
        // Some file systems only now say that there is no room.
        if (const int code = file.finish()) {
            outcome.error = message("cannot write", draft, code);
            return false;
        }
        return true;
    }

    const std::string directory_;
    std::atomic<std::uint64_t> drafts_{0};
};

// Removes what processes that have ended left behind.
void remove_stale_drafts(const std::string &directory) {
    const std::string_view prefix = kDraftPrefix;
    std::error_code code;
    std::filesystem::directory_iterator entry(directory, code);
    for (; !code && entry != std::filesystem::directory_iterator(); entry.increment(code)) {
        const std::string name = entry->path().filename().string();
        if (name.compare(0, prefix.size(), prefix) != 0) {
            continue;
        }
        const long pid = std::strtol(name.c_str() + prefix.size(), nullptr, 10);
        const bool has_ended = pid > 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
        if (has_ended) {
            ::unlink(entry->path().c_str());
        }
    }
}

} // namespace

std::unique_ptr<Store> file_store(const std::string &directory, std::string &error) {
    std::error_code code;
    std::filesystem::create_directories(directory, code);
    if (code) {
        error = "cannot make the directory " + directory + ": " + code.message();
        return nullptr;
    }
    remove_stale_drafts(directory);
    return std::make_unique<FileStore>(directory);
}

} // namespace example
