// A small JSON reader for hostile input: strict RFC 8259, with depth, duplicates and numbers checked
// as docs/pack-format.md has it.
//
// It keeps the text and one 16-byte node for each value. A tree of std::string and std::vector
// would turn a header of 10 MB into a gigabyte, and the engine runs on small computers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace burn::json {

enum class Type : uint32_t { null, boolean, number, string, array, object };

constexpr int max_depth = 16;
constexpr size_t max_number = 100;  // characters

class Document;
struct Member;

// One value of a document, which must outlive it.
class Value {
public:
    Value(const Document *document, uint32_t index) : document_(document), index_(index) {}

    Type type() const;
    bool is(Type wanted) const { return type() == wanted; }

    // Each of these is for values of its own type only.
    bool boolean() const;
    std::string string() const;  // unescaped, valid UTF-8
    size_t count() const;        // of an array or object
    std::vector<Value> elements() const;
    std::vector<Member> members() const;
    std::optional<Value> find(std::string_view key) const;

    // The value of a number written as an integer (1, not 1.0 or 1e0) from 0 to 2^64 - 1.
    std::optional<uint64_t> unsigned_integer() const;

    // As it stands in the text, for messages.
    std::string_view source() const;

private:
    const Document *document_;
    uint32_t index_;
};

struct Member {
    std::string key;
    Value value;
};

class Document {
public:
    // Throws burn::Error whose message begins with `where`.
    Document(std::string text, const std::string &where);
    Document(const Document &) = delete;  // values point to it
    Document &operator=(const Document &) = delete;

    Value root() const { return {this, 0}; }

private:
    friend class Value;
    friend class Parser;

    // A container is followed by what it holds (an object's keys are nodes too).
    struct Node {
        Type type;
        uint32_t begin;  // the first byte in the text
        uint32_t end;    // the byte behind the last
        uint32_t next;   // index of the node behind this one and all it holds
    };

    std::string text_;
    std::vector<Node> nodes_;
};

// Text from a file, made fit to be printed: 100 characters at most, none of them unprintable.
std::string printable(std::string_view text);

}  // namespace burn::json
