// A small JSON reader for hostile input. It accepts strict RFC 8259 and checks depth, duplicate
// keys and numbers as docs/project/pack-format.md requires.
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

// A value of a document; the document must outlive it.
class Value {
  public:
    Value(const Document *document, uint32_t index) : document_(document), index_(index) {}

    Type type() const;
    bool is(Type wanted) const { return type() == wanted; }

    // Each of these may be called only for values of its own type.
    bool boolean() const;
    std::string string() const;  // unescaped, valid UTF-8
    size_t count() const;        // of elements or members
    std::vector<Value> elements() const;
    std::vector<Member> members() const;
    std::optional<Value> find(std::string_view key) const;

    // Returns the value of a number that is written as an integer (1, not 1.0 or 1e0) from 0 to
    // 2^64 - 1; nothing for other numbers.
    std::optional<uint64_t> unsigned_integer() const;

    // Returns the value as the text has it, for messages.
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
    // Parses the text. Throws burn::Error if it is not valid JSON; the message begins with `where`.
    Document(std::string text, const std::string &where);
    Document(const Document &) = delete;  // values point to it
    Document &operator=(const Document &) = delete;

    Value root() const { return {this, 0}; }

  private:
    friend class Value;
    friend class Parser;

    // The node of a container is followed by those of its contents. Keys of objects are nodes too.
    struct Node {
        Type type;
        uint32_t begin;  // the first byte in the text
        uint32_t end;    // one past the last byte
        uint32_t next;   // index of the node after this one and its contents
    };

    std::string text_;
    std::vector<Node> nodes_;
};

// Returns text of a file in a form that can be printed: at most 100 characters, and '?' for every
// byte that is not printable ASCII.
std::string printable(std::string_view text);

}  // namespace burn::json
