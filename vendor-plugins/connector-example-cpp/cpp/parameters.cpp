#include "parameters.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace example {
namespace {

constexpr int kDeepest = 64;

// Reads JSON from the front of a text. What is not needed is checked only as far as finding its end takes.
class Reader {
public:
    explicit Reader(const char *at) : at_(at) {}

    bool take(char expected) {
        skip_space();
        if (*at_ != expected) {
            return false;
        }
        ++at_;
        return true;
    }

    char next() {
        skip_space();
        return *at_;
    }

    bool string(std::string &text) {
        if (!take('"')) {
            return false;
        }
        text.clear();
        while (*at_ != '"') {
            if (*at_ == '\0') {
                return false;
            }
            if (*at_ != '\\') {
                text += *at_++;
                continue;
            }
            ++at_;
            if (!escape(text)) {
                return false;
            }
        }
        ++at_;
        return true;
    }

    // Any value; a number or a word is left in `text` as it stands.
    bool value(std::string &text, int depth) {
        if (depth > kDeepest) {
            return false;
        }
        switch (next()) {
        case '"':
            return string(text);
        case '{':
            return container('{', '}', depth);
        case '[':
            return container('[', ']', depth);
        default: {
            const std::size_t length = std::strcspn(at_, ",]} \t\r\n");
            text.assign(at_, length);
            at_ += length;
            return length > 0;
        }
        }
    }

private:
    void skip_space() { at_ += std::strspn(at_, " \t\r\n"); }

    bool container(char open, char close, int depth) {
        std::string ignored;
        take(open);
        if (take(close)) {
            return true;
        }
        do {
            if (open == '{' && !(string(ignored) && take(':'))) {
                return false;
            }
            if (!value(ignored, depth + 1)) {
                return false;
            }
        } while (take(','));
        return take(close);
    }

    bool escape(std::string &text) {
        static const char kNames[] = "\"\\/bfnrt";
        static const char kBytes[] = "\"\\/\b\f\n\r\t";
        if (*at_ == 'u') {
            ++at_;
            return unicode(text);
        }
        const char *name = *at_ == '\0' ? nullptr : std::strchr(kNames, *at_);
        if (name == nullptr) {
            return false;
        }
        text += kBytes[name - kNames];
        ++at_;
        return true;
    }

    bool hex4(std::uint32_t &code) {
        code = 0;
        for (int digit = 0; digit < 4; ++digit, ++at_) {
            const char *found = *at_ == '\0' ? nullptr : std::strchr("0123456789abcdefABCDEF", *at_);
            if (found == nullptr) {
                return false;
            }
            const char text[] = {*at_, '\0'};
            code = code << 4 | static_cast<std::uint32_t>(std::strtoul(text, nullptr, 16));
        }
        return true;
    }

    bool unicode(std::string &text) {
        std::uint32_t code = 0;
        if (!hex4(code) || code == 0) {
            return false;
        }
        if (code >= 0xd800 && code < 0xdc00) {
            std::uint32_t low = 0;
            if (at_[0] != '\\' || at_[1] != 'u') {
                return false;
            }
            at_ += 2;
            if (!hex4(low) || low < 0xdc00 || low > 0xdfff) {
                return false;
            }
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        } else if (code >= 0xdc00 && code < 0xe000) {
            return false;
        }
        if (code < 0x80) {
            text += static_cast<char>(code);
            return true;
        }
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        static const std::uint32_t kLeads[] = {0xc0, 0xe0, 0xf0};
        text += static_cast<char>(kLeads[more - 1] | code >> (6 * more));
        for (int left = more - 1; left >= 0; --left) {
            text += static_cast<char>(0x80u | (code >> (6 * left) & 0x3fu));
        }
        return true;
    }

    const char *at_;
};

} // namespace

bool Parameters::parse(const char *json, std::string &error) {
    error = "the parameters are no JSON object";
    if (json == nullptr) {
        return false;
    }
    Reader reader(json);
    if (!reader.take('{')) {
        return false;
    }
    if (!reader.take('}')) {
        do {
            std::string name;
            std::string value;
            if (!reader.string(name) || !reader.take(':')) {
                return false;
            }
            auto &members = reader.next() == '"' ? texts_ : others_;
            if (!reader.value(value, 0)) {
                return false;
            }
            members[name] = value;
        } while (reader.take(','));
        if (!reader.take('}')) {
            return false;
        }
    }
    if (reader.next() != '\0') {
        return false;
    }
    error.clear();
    return true;
}

const std::string *Parameters::text(const std::string &name) const {
    const auto found = texts_.find(name);
    return found == texts_.end() ? nullptr : &found->second;
}

bool Parameters::number(const std::string &name, std::int64_t lowest, std::int64_t highest, std::int64_t &value,
                        std::string &error) const {
    const auto other = others_.find(name);
    const std::string *found = other == others_.end() ? text(name) : &other->second;
    if (found == nullptr) {
        return true;
    }
    char *end = nullptr;
    errno = 0;
    const long long number = std::strtoll(found->c_str(), &end, 10);
    const bool is_number = other != others_.end() && !found->empty() && *end == '\0' && errno == 0;
    if (!is_number || number < lowest || number > highest) {
        error = name + " is " + (found->empty() ? "not a number" : *found) + "; expected a whole number from " +
                std::to_string(lowest) + " to " + std::to_string(highest);
        return false;
    }
    value = number;
    return true;
}

} // namespace example
