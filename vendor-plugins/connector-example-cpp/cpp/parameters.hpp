// The parameters of a connector.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace example {

// The members of a JSON object that are strings or whole numbers. Members of other kinds are read over, as parameters that
// a connector does not know are.
class Parameters {
public:
    // False, and `error` says why, if `json` is no JSON object.
    bool parse(const char *json, std::string &error);

    // Null if there is no such string.
    const std::string *text(const std::string &name) const;
    // The default if there is no such member; false, and `error` says why, if it is not a whole number in the range.
    bool number(const std::string &name, std::int64_t lowest, std::int64_t highest, std::int64_t &value,
                std::string &error) const;

private:
    std::map<std::string, std::string> texts_;
    std::map<std::string, std::string> others_;
};

} // namespace example
