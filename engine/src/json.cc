#include "json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "format.h"

namespace burn::json {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

unsigned byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

// Returns the length of the UTF-8 sequence that begins at text[i], or 0 if it is not valid
// (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
size_t utf8_length(std::string_view text, size_t i) {
    const unsigned first = byte_at(text, i);
    if (first < 0x80) return 1;
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || length > text.size() - i) return 0;
    for (size_t k = 1; k < length; ++k) {
        if ((byte_at(text, i + k) & 0xC0) != 0x80) return 0;
    }
    const unsigned second = byte_at(text, i + 1);
    if (first == 0xE0 && second < 0xA0) return 0;  // overlong
    if (first == 0xED && second > 0x9F) return 0;  // surrogate
    if (first == 0xF0 && second < 0x90) return 0;  // overlong
    if (first == 0xF4 && second > 0x8F) return 0;  // too large
    return length;
}

// Returns whether a number of at most 100 characters is finite as a double. The decimal point is
// removed before strtod reads it, because the locale says which character that is.
bool is_finite(std::string_view number) {
    const size_t e = number.find_first_of("eE");
    if (e == std::string_view::npos) return true;  // 100 digits: less than 1e100
    std::string digits;
    int exponent = 0;
    for (size_t i = e + 1; i < number.size(); ++i) {
        if (is_digit(number[i])) exponent = std::min(exponent * 10 + (number[i] - '0'), 10'000);
    }
    if (number[e + 1] == '-') exponent = -exponent;
    const size_t point = number.substr(0, e).find('.');
    for (size_t i = 0; i < e; ++i) {
        if (is_digit(number[i])) digits += number[i];
    }
    if (point != std::string_view::npos) exponent -= static_cast<int>(e - point - 1);
    digits += 'e' + std::to_string(exponent);
    return std::isfinite(std::strtod(digits.c_str(), nullptr));
}

void append_utf8(std::string &out, uint32_t code) {
    const auto add = [&out](uint32_t byte) { out += static_cast<char>(byte); };
    if (code < 0x80) {
        add(code);
    } else if (code < 0x800) {
        add(0xC0 | (code >> 6));
        add(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        add(0xE0 | (code >> 12));
        add(0x80 | ((code >> 6) & 0x3F));
        add(0x80 | (code & 0x3F));
    } else {
        add(0xF0 | (code >> 18));
        add(0x80 | ((code >> 12) & 0x3F));
        add(0x80 | ((code >> 6) & 0x3F));
        add(0x80 | (code & 0x3F));
    }
}

}  // namespace

class Parser {
  public:
    Parser(std::string_view text, const std::string &where, size_t at = 0)
        : text_(text), where_(where), at_(at) {}

    void document(std::vector<Document::Node> &nodes) {
        nodes_ = &nodes;
        check_utf8();
        skip_space();
        value(0);
        skip_space();
        if (at_ != text_.size()) fail("something follows the JSON value");
    }

    // Parses the string that begins at the current quote, and returns it unescaped.
    std::string string() {
        std::string out;
        expect('"', "a string");
        while (true) {
            const char c = peek();
            if (at_ == text_.size()) fail("a string does not end");
            if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
            ++at_;
            if (c == '"') return out;
            if (c == '\\') {
                escape(out);
            } else {
                out += c;
            }
        }
    }

  private:
    [[noreturn]] void fail(const std::string &what) const {
        throw Error(where_ + ": not valid JSON: " + what + ", at byte " + std::to_string(at_));
    }

    void check_utf8() {
        while (at_ < text_.size()) {
            const size_t length = utf8_length(text_, at_);
            if (length == 0) fail("not UTF-8");
            at_ += length;
        }
        at_ = 0;
    }

    // Returns NUL at the end of the text. A NUL in the text is not a valid token anywhere either.
    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    bool accept(char c) {
        if (at_ == text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }

    void expect(char c, const char *what) {
        if (!accept(c)) fail(std::string("expected ") + what);
    }

    void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size()); }

    size_t open_node(Type type) {
        nodes_->push_back({type, static_cast<uint32_t>(at_), 0, 0});
        return nodes_->size() - 1;
    }

    void close_node(size_t node) {
        (*nodes_)[node].end = static_cast<uint32_t>(at_);
        (*nodes_)[node].next = static_cast<uint32_t>(nodes_->size());
    }

    void value(int depth) {
        const char c = peek();
        if (c == '{' || c == '[') {
            if (depth == max_depth) fail("nested more than 16 levels deep");
            c == '{' ? object(depth + 1) : array(depth + 1);
        } else if (c == '"') {
            string_node();
        } else if (c == '-' || is_digit(c)) {
            number();
        } else {
            literal();
        }
    }

    void object(int depth) {
        const size_t node = open_node(Type::object);
        std::vector<std::string> keys;
        expect('{', "an object");
        skip_space();
        if (!accept('}')) {
            do {
                skip_space();
                keys.push_back(string_node());
                skip_space();
                expect(':', "':'");
                skip_space();
                value(depth);
                skip_space();
            } while (accept(','));
            expect('}', "',' or '}'");
        }
        close_node(node);
        check_distinct(std::move(keys));
    }

    void check_distinct(std::vector<std::string> keys) const {
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) fail("key '" + printable(*twice) + "' appears twice in an object");
    }

    void array(int depth) {
        const size_t node = open_node(Type::array);
        expect('[', "an array");
        skip_space();
        if (!accept(']')) {
            do {
                skip_space();
                value(depth);
                skip_space();
            } while (accept(','));
            expect(']', "',' or ']'");
        }
        close_node(node);
    }

    std::string string_node() {
        const size_t node = open_node(Type::string);
        std::string out = string();
        close_node(node);
        return out;
    }

    void number() {
        const size_t node = open_node(Type::number);
        accept('-');
        if (!accept('0')) digits();
        if (accept('.')) digits();
        if (accept('e') || accept('E')) {
            if (!accept('+')) accept('-');
            digits();
        }
        close_node(node);
        const size_t begin = (*nodes_)[node].begin;
        if (at_ - begin > max_number) fail("a number of more than 100 characters");
        if (!is_finite(text_.substr(begin, at_ - begin))) fail("a number that is not finite");
    }

    void digits() {
        if (!is_digit(peek())) fail("expected a digit");
        while (is_digit(peek())) ++at_;
    }

    void literal() {
        struct Word {
            std::string_view text;
            Type type;
        };
        constexpr Word words[] = {
            {"true", Type::boolean}, {"false", Type::boolean}, {"null", Type::null}};
        for (const Word &word : words) {
            if (text_.substr(at_, word.text.size()) != word.text) continue;
            const size_t node = open_node(word.type);
            at_ += word.text.size();
            close_node(node);
            return;
        }
        fail("expected a value");
    }

    void escape(std::string &out) {
        constexpr std::string_view letters = "\"\\/bfnrt";
        constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
        const char c = peek();
        const size_t known = letters.find(c);
        if (known != std::string_view::npos) {
            ++at_;
            out += meanings[known];
        } else {
            if (c != 'u') fail("an unknown escape in a string");
            append_utf8(out, code_point());
        }
    }

    uint32_t code_point() {
        const uint32_t high = four_digits();
        if (high < 0xD800 || high > 0xDFFF) return high;
        if (high > 0xDBFF || !accept('\\')) fail("half a surrogate pair");
        const uint32_t low = four_digits();
        if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair");
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }

    uint32_t four_digits() {
        expect('u', "\\u and four hexadecimal digits");
        uint32_t code = 0;
        for (int i = 0; i < 4; ++i, ++at_) {
            const char c = peek();
            uint32_t digit = 0;
            if (is_digit(c)) {
                digit = static_cast<uint32_t>(c - '0');
            } else if (c >= 'a' && c <= 'f') {
                digit = static_cast<uint32_t>(c - 'a') + 10;
            } else if (c >= 'A' && c <= 'F') {
                digit = static_cast<uint32_t>(c - 'A') + 10;
            } else {
                fail("expected \\u and four hexadecimal digits");
            }
            code = code << 4 | digit;
        }
        return code;
    }

    std::string_view text_;
    const std::string &where_;
    size_t at_;
    std::vector<Document::Node> *nodes_ = nullptr;
};

Document::Document(std::string text, const std::string &where) : text_(std::move(text)) {
    if (text_.size() > std::numeric_limits<uint32_t>::max()) {
        throw Error(where + ": JSON of more than 4 GiB");
    }
    Parser(text_, where).document(nodes_);
}

Type Value::type() const { return document_->nodes_[index_].type; }

std::string_view Value::source() const {
    const Document::Node &node = document_->nodes_[index_];
    return std::string_view(document_->text_).substr(node.begin, node.end - node.begin);
}

bool Value::boolean() const { return source() == "true"; }

std::string Value::string() const {
    // This cannot fail, because the string has been parsed before.
    return Parser(document_->text_, {}, document_->nodes_[index_].begin).string();
}

std::optional<uint64_t> Value::unsigned_integer() const {
    const std::string_view digits = source();
    if (digits == "-0") return 0;
    uint64_t value = 0;
    for (const char c : digits) {
        if (!is_digit(c)) return std::nullopt;
        const auto digit = static_cast<uint64_t>(c - '0');
        if (value > (std::numeric_limits<uint64_t>::max() - digit) / 10) return std::nullopt;
        value = value * 10 + digit;
    }
    return value;
}

size_t Value::count() const {
    const std::vector<Document::Node> &nodes = document_->nodes_;
    size_t found = 0;
    for (uint32_t i = index_ + 1; i < nodes[index_].next; i = nodes[i].next) ++found;
    return is(Type::object) ? found / 2 : found;
}

std::vector<Value> Value::elements() const {
    const std::vector<Document::Node> &nodes = document_->nodes_;
    std::vector<Value> found;
    for (uint32_t i = index_ + 1; i < nodes[index_].next; i = nodes[i].next) {
        found.emplace_back(document_, i);
    }
    return found;
}

// A key is a string without children, so its value is the next node.
std::vector<Member> Value::members() const {
    const std::vector<Document::Node> &nodes = document_->nodes_;
    std::vector<Member> found;
    for (uint32_t i = index_ + 1; i < nodes[index_].next; i = nodes[i + 1].next) {
        found.push_back({Value(document_, i).string(), Value(document_, i + 1)});
    }
    return found;
}

std::optional<Value> Value::find(std::string_view key) const {
    const std::vector<Document::Node> &nodes = document_->nodes_;
    for (uint32_t i = index_ + 1; i < nodes[index_].next; i = nodes[i + 1].next) {
        if (Value(document_, i).string() == key) return Value(document_, i + 1);
    }
    return std::nullopt;
}

std::string printable(std::string_view text) {
    constexpr size_t longest = 100;
    std::string out(text.substr(0, longest));
    for (char &c : out) {
        if (c < ' ' || c > '~') c = '?';
    }
    if (text.size() > longest) out.replace(longest - 3, 3, "...");
    return out;
}

}  // namespace burn::json
