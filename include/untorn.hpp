/*
 * untorn.hpp - memory-mapped files that never tear: the C++ interface, for C++17 and later.
 *
 * Each class owns a handle of untorn.h, which says what the calls promise. A handle can be moved, not copied.
 *
 * A first program:
 *
 *     #include <untorn.hpp>
 *     #include <iostream>
 *
 *     int main() {
 *         try {
 *             untorn::options options;
 *             options.create(1 << 20);
 *             untorn::file ledger("ledger", options);
 *             untorn::transaction both = ledger.begin();
 *             both.write_value(0, std::uint64_t{400});
 *             both.write_value(8192, std::uint64_t{600});
 *             both.commit();    // visible together
 *             ledger.close();   // durable together, and a plain file again
 *         } catch (const untorn::error &why) {
 *             std::cerr << why.what() << '\n';
 *             return 1;
 *         }
 *     }
 *
 * Compile and link:
 *
 *     c++ -std=c++17 first.cpp $(pkg-config --cflags --libs untorn) -o first
 *
 * Conventions:
 * - Each call has two forms, as those of std::filesystem have. Without a std::error_code it throws untorn::error, which
 *   has the whole text. With one as the last argument it is noexcept and sets the code, and untorn::last_message()
 *   returns the text. A call on an object without a handle fails with std::errc::invalid_argument.
 * - A code of the system compares equal to its std::errc, as in `code == std::errc::no_space_on_device`. All codes
 *   compare equal to the UNTORN_E* of untorn.h by code.value().
 * - A destructor drops its errors; call close() to see them. ~file closes the file, which commits what was written.
 *   ~map and ~shared_map leave what was not committed out, as the C functions do. ~transaction takes its writes back.
 * - A transaction must end before its file. A file that is destroyed earlier stays open until the process ends.
 * - What is read, written or viewed as a value must be trivially copyable. A string literal has its final zero; a
 *   std::string or std::string_view does not.
 */
#ifndef UNTORN_HPP
#define UNTORN_HPP

#include <untorn.h>
#include <untorn/protect.h>
#include <untorn/shared.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

namespace untorn {

/* Errors. */

namespace detail {

class untorn_category final : public std::error_category {
public:
    const char *name() const noexcept override { return "untorn"; }
    std::string message(int code) const override { return untorn_strerror(code); }
    std::error_condition default_error_condition(int code) const noexcept override {
        if (code < 0 && code > -1000) return {-code, std::generic_category()};
        return {code, *this};
    }
};

} // namespace detail

/* The category of all codes. A value is one of UNTORN_E*, or another negative errno. */
inline const std::error_category &category() noexcept {
    static const detail::untorn_category the_category;
    return the_category;
}

/* The text of this thread's last failure: it names the file and says what to do. */
inline std::string last_message() {
    untorn_error why;
    return untorn_last_error(&why) == 0 ? std::string(why.message) : std::string();
}

/* Why a call failed. */
class error : public std::system_error {
public:
    error(int code, const std::string &text) : std::system_error(code, category(), text), text_(text) {}
    /* The library's text, which names the file and says what to do. */
    const char *what() const noexcept override { return text_.empty() ? std::system_error::what() : text_.c_str(); }

private:
    std::string text_;
};

/* The version of the library that the program runs with, as "0.1.0". */
inline const char *version() noexcept { return untorn_version(); }

/* Views. */

/* A view of consecutive values, like the std::span of C++20, which converts to it and from it. */
template <class T>
class span {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;

    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t N>
    constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
    template <class C, class P = decltype(std::declval<C &>().data()),
              class = decltype(static_cast<std::size_t>(std::declval<C &>().size())),
              class = std::enable_if_t<std::is_convertible_v<std::remove_pointer_t<P> (*)[], T (*)[]> &&
                                       !std::is_same_v<std::remove_cv_t<std::remove_reference_t<C>>, span>>>
    constexpr span(C &&of) noexcept : data_(of.data()), size_(of.size()) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t at) const noexcept { return data_[at]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* Bytes to write: any container with data() and size(), or an array, of trivially copyable elements. */
class const_buffer {
public:
    constexpr const_buffer() noexcept = default;
    constexpr const_buffer(const void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class T, std::size_t N>
    constexpr const_buffer(const T (&array)[N]) noexcept : data_(array), size_(sizeof array) {
        static_assert(std::is_trivially_copyable_v<T>, "only trivially copyable values can be in a file");
    }
    template <class C, class T = std::remove_pointer_t<decltype(std::declval<const C &>().data())>,
              class = decltype(static_cast<std::size_t>(std::declval<const C &>().size())),
              class = std::enable_if_t<std::is_object_v<T>>>
    constexpr const_buffer(const C &of) noexcept : data_(of.data()), size_(of.size() * sizeof(T)) {
        static_assert(std::is_trivially_copyable_v<std::remove_cv_t<T>>,
                      "only trivially copyable values can be in a file");
    }
    constexpr const void *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

private:
    const void *data_ = nullptr;
    std::size_t size_ = 0;
};

/* Room for bytes that are read. */
class mutable_buffer {
public:
    constexpr mutable_buffer() noexcept = default;
    constexpr mutable_buffer(void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class T, std::size_t N>
    constexpr mutable_buffer(T (&array)[N]) noexcept : data_(array), size_(sizeof array) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "a read needs room that can change");
    }
    template <class C, class T = std::remove_pointer_t<decltype(std::declval<C &>().data())>,
              class = decltype(static_cast<std::size_t>(std::declval<C &>().size())),
              class = std::enable_if_t<std::is_object_v<T>>>
    constexpr mutable_buffer(C &&of) noexcept : data_(of.data()), size_(of.size() * sizeof(T)) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "a read needs room that can change");
    }
    constexpr void *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }

private:
    void *data_ = nullptr;
    std::size_t size_ = 0;
};

namespace detail {

inline void check(int code) {
    if (code < 0) throw error(code, last_message());
}

inline void note(int code, std::error_code &ec) noexcept {
    if (code < 0) ec.assign(code, category());
    else ec.clear();
}

/* The code of a function that returns NULL. */
inline int code_of(const untorn_error &why) noexcept { return why.code < 0 ? why.code : UNTORN_EINTERNAL; }

template <class Handle>
Handle *checked(Handle *handle, const untorn_error &why) {
    if (!handle) throw error(code_of(why), why.message);
    return handle;
}

template <class Handle>
Handle *noted(Handle *handle, const untorn_error &why, std::error_code &ec) noexcept {
    note(handle ? 0 : code_of(why), ec);
    return handle;
}

inline int last_code() noexcept {
    untorn_error why;
    return untorn_last_error(&why) == 0 ? code_of(why) : UNTORN_EINTERNAL;
}

/* A handle that its function ends when it is dropped. */
template <class Handle, int (*End)(Handle *)>
class owner {
public:
    owner() noexcept = default;
    explicit owner(Handle *handle) noexcept : handle_(handle) {}
    owner(owner &&other) noexcept : handle_(other.release()) {}
    owner &operator=(owner &&other) noexcept {
        if (this != &other) {
            drop();
            handle_ = other.release();
        }
        return *this;
    }
    ~owner() { drop(); }
    Handle *get() const noexcept { return handle_; }
    Handle *release() noexcept { return std::exchange(handle_, nullptr); }

private:
    void drop() noexcept {
        if (handle_) (void)End(std::exchange(handle_, nullptr));
    }
    Handle *handle_ = nullptr;
};

/* Typed views of a piece of memory; a view that is not within it or not aligned is empty. */
template <class T>
span<T> view(void *memory, std::uint64_t length, std::uint64_t offset, std::size_t count) noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "only trivially copyable values can be in a file");
    if (offset > length || count > (length - offset) / sizeof(T) || offset % alignof(T) != 0) return {};
    return {reinterpret_cast<T *>(static_cast<unsigned char *>(memory) + offset), count};
}

} // namespace detail

/* Options. */

/* How to open a file: the fields of untorn_options, all at their defaults. Any field can be set directly. */
struct options : untorn_options {
    options() noexcept : untorn_options(UNTORN_OPTIONS_INIT) {}
    /* If the file does not exist, create one of so many zero bytes. */
    options &create(std::uint64_t bytes) noexcept {
        flags |= UNTORN_CREATE;
        length = bytes;
        return *this;
    }
    options &set(std::uint32_t more_flags) noexcept {
        flags |= more_flags;
        return *this;
    }
};

/* The number and the time of a commit. */
struct commit_info {
    std::uint64_t number = 0;
    /* Since 1970; 0 if it is not known. */
    std::chrono::nanoseconds time{0};
};

/* Snapshots. */

/* A file as it was at one commit. */
class snapshot {
public:
    snapshot() noexcept = default;
    explicit snapshot(untorn_snapshot_t *owned) noexcept : handle_(owned) {}
    /* A snapshot of a file that this process, another one, or none has open. */
    explicit snapshot(const std::string &path) {
        untorn_error why;
        handle_ = handle(detail::checked(untorn_snapshot_open(path.c_str(), &why), why));
    }
    snapshot(const std::string &path, std::error_code &ec) noexcept {
        untorn_error why;
        handle_ = handle(detail::noted(untorn_snapshot_open(path.c_str(), &why), why, ec));
    }

    void read(std::uint64_t offset, mutable_buffer into) const { detail::check(read_(offset, into)); }
    void read(std::uint64_t offset, mutable_buffer into, std::error_code &ec) const noexcept {
        detail::note(read_(offset, into), ec);
    }
    template <class T>
    T read_value(std::uint64_t offset) const {
        static_assert(std::is_trivially_copyable_v<T>, "only trivially copyable values can be in a file");
        T value;
        read(offset, mutable_buffer(&value, sizeof value));
        return value;
    }
    std::uint64_t size() const noexcept { return untorn_snapshot_len(get()); }
    std::uint64_t commit_number() const noexcept { return untorn_snapshot_commit(get()); }
    void close() { detail::check(untorn_snapshot_close(handle_.release())); }
    void close(std::error_code &ec) noexcept { detail::note(untorn_snapshot_close(handle_.release()), ec); }

    explicit operator bool() const noexcept { return get() != nullptr; }
    untorn_snapshot_t *get() const noexcept { return handle_.get(); }
    untorn_snapshot_t *release() noexcept { return handle_.release(); }

private:
    using handle = detail::owner<untorn_snapshot_t, untorn_snapshot_close>;
    int read_(std::uint64_t offset, mutable_buffer into) const noexcept {
        return untorn_snapshot_read(get(), offset, into.data(), into.size());
    }
    handle handle_;
};

/* Commits. */

/* One commit of a stream. To repeat it: set the length to `shortest`, then to `size` (bytes in between are zeros), then
 * write the changes. */
struct commit {
    std::uint64_t number = 0;
    /* The number of the commit before it. */
    std::uint64_t previous = 0;
    /* Since 1970; 0 if it is not known. */
    std::chrono::nanoseconds time{0};
    /* The length of the file after it. */
    std::uint64_t size = 0;
    /* The shortest that the file was in it. */
    std::uint64_t shortest = 0;
    /* Ascending. They are valid until the next call with the stream. */
    span<const untorn_change> changes;
};

/* The commits of a file with a commit log (options::commit_log), each once and in order, also while another process has
 * the file open. One thread at a time uses a stream. */
class commit_stream {
public:
    commit_stream() noexcept = default;
    explicit commit_stream(untorn_commits_t *owned) noexcept : handle_(owned) {}
    /* The commits after the one of this number; 0: all since the file was created with its log. */
    explicit commit_stream(const std::string &path, std::uint64_t from = 0) {
        untorn_error why;
        handle_ = handle(detail::checked(untorn_commits_open(path.c_str(), from, &why), why));
    }
    commit_stream(const std::string &path, std::uint64_t from, std::error_code &ec) noexcept {
        untorn_error why;
        handle_ = handle(detail::noted(untorn_commits_open(path.c_str(), from, &why), why, ec));
    }
    /* The stream of a consumer, which has a name and a durable position. It goes on after the last commit that was
     * acknowledged, or after *from. A new name is registered, and begins at the start of the log. */
    static commit_stream consumer(const std::string &path, const std::string &name,
                                  const std::uint64_t *from = nullptr) {
        untorn_error why;
        untorn_commits_t *opened = untorn_commits_consumer(path.c_str(), name.c_str(), from, &why);
        return commit_stream(detail::checked(opened, why));
    }
    static commit_stream consumer(const std::string &path, const std::string &name, const std::uint64_t *from,
                                  std::error_code &ec) noexcept {
        untorn_error why;
        untorn_commits_t *opened = untorn_commits_consumer(path.c_str(), name.c_str(), from, &why);
        return commit_stream(detail::noted(opened, why, ec));
    }

    /* Stores the next commit; false if there is none after this time, and a time of 0 looks only. */
    bool next(commit &into, std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) {
        const int code = next_(into, timeout);
        detail::check(code);
        return code > 0;
    }
    bool next(commit &into, std::chrono::milliseconds timeout, std::error_code &ec) noexcept {
        const int code = next_(into, timeout);
        detail::note(code, ec);
        return code > 0;
    }
    /* Notes durably that the consumer is done with the commits up to this one. */
    void acknowledge(std::uint64_t number) { detail::check(untorn_commits_acknowledge(get(), number)); }
    void acknowledge(std::uint64_t number, std::error_code &ec) noexcept {
        detail::note(untorn_commits_acknowledge(get(), number), ec);
    }
    void close() { detail::check(untorn_commits_close(handle_.release())); }
    void close(std::error_code &ec) noexcept { detail::note(untorn_commits_close(handle_.release()), ec); }

    explicit operator bool() const noexcept { return get() != nullptr; }
    untorn_commits_t *get() const noexcept { return handle_.get(); }
    untorn_commits_t *release() noexcept { return handle_.release(); }

private:
    using handle = detail::owner<untorn_commits_t, untorn_commits_close>;
    int next_(commit &into, std::chrono::milliseconds timeout) noexcept {
        untorn_commit found;
        const std::uint64_t wait = timeout.count() > 0 ? static_cast<std::uint64_t>(timeout.count()) : 0;
        const int code = untorn_commits_next(get(), wait, &found);
        if (code > 0) {
            into.number = found.number;
            into.previous = found.previous;
            into.time = std::chrono::nanoseconds(found.time_ns);
            into.size = found.len;
            into.shortest = found.shortest;
            into.changes = {found.changes, found.change_count};
        }
        return code;
    }
    handle handle_;
};

/* Removes a consumer: the log keeps nothing for it any more. */
inline void forget_consumer(const std::string &path, const std::string &name) {
    detail::check(untorn_commits_forget(path.c_str(), name.c_str()));
}
inline void forget_consumer(const std::string &path, const std::string &name, std::error_code &ec) noexcept {
    detail::note(untorn_commits_forget(path.c_str(), name.c_str()), ec);
}

/* Files. */

/* Writes to one file that commit together or not at all. One thread at a time uses it. */
class transaction {
public:
    transaction() noexcept = default;
    explicit transaction(untorn_tx *owned) noexcept : handle_(owned) {}

    void write(std::uint64_t offset, const_buffer from) { detail::check(write_(offset, from)); }
    void write(std::uint64_t offset, const_buffer from, std::error_code &ec) noexcept {
        detail::note(write_(offset, from), ec);
    }
    template <class T>
    void write_value(std::uint64_t offset, const T &value) {
        static_assert(std::is_trivially_copyable_v<T>, "only trivially copyable values can be in a file");
        write(offset, const_buffer(&value, sizeof value));
    }
    /* Applies all writes as one, and ends the transaction whatever it returns. */
    void commit() { detail::check(untorn_tx_commit(handle_.release())); }
    void commit(std::error_code &ec) noexcept { detail::note(untorn_tx_commit(handle_.release()), ec); }
    /* Drops the writes. */
    void abort() noexcept { untorn_tx_abort(handle_.release()); }

    explicit operator bool() const noexcept { return get() != nullptr; }
    untorn_tx *get() const noexcept { return handle_.get(); }
    untorn_tx *release() noexcept { return handle_.release(); }

private:
    static int end(untorn_tx *handle) noexcept {
        untorn_tx_abort(handle);
        return 0;
    }
    int write_(std::uint64_t offset, const_buffer from) noexcept {
        return untorn_tx_write(get(), offset, from.data(), from.size());
    }
    detail::owner<untorn_tx, end> handle_;
};

/* A file with atomic reads and writes. Any number of threads may use it. */
class file {
public:
    file() noexcept = default;
    explicit file(untorn_t *owned) noexcept : handle_(owned) {}
    explicit file(const std::string &path, const untorn_options &how = options()) {
        untorn_error why;
        handle_ = handle(detail::checked(untorn_open(path.c_str(), &how, &why), why));
    }
    file(const std::string &path, const untorn_options &how, std::error_code &ec) noexcept {
        untorn_error why;
        handle_ = handle(detail::noted(untorn_open(path.c_str(), &how, &why), why, ec));
    }

    void read(std::uint64_t offset, mutable_buffer into) const { detail::check(read_(offset, into)); }
    void read(std::uint64_t offset, mutable_buffer into, std::error_code &ec) const noexcept {
        detail::note(read_(offset, into), ec);
    }
    template <class T>
    T read_value(std::uint64_t offset) const {
        static_assert(std::is_trivially_copyable_v<T>, "only trivially copyable values can be in a file");
        T value;
        read(offset, mutable_buffer(&value, sizeof value));
        return value;
    }
    void write(std::uint64_t offset, const_buffer from) { detail::check(write_(offset, from)); }
    void write(std::uint64_t offset, const_buffer from, std::error_code &ec) noexcept {
        detail::note(write_(offset, from), ec);
    }
    template <class T>
    void write_value(std::uint64_t offset, const T &value) {
        static_assert(std::is_trivially_copyable_v<T>, "only trivially copyable values can be in a file");
        write(offset, const_buffer(&value, sizeof value));
    }

    /* Commits the open epoch: all that was written before is durable. */
    void sync() { detail::check(untorn_sync(get())); }
    void sync(std::error_code &ec) noexcept { detail::note(untorn_sync(get()), ec); }
    void resize(std::uint64_t size) { detail::check(untorn_resize(get(), size)); }
    void resize(std::uint64_t size, std::error_code &ec) noexcept { detail::note(untorn_resize(get(), size), ec); }
    std::uint64_t size() const noexcept { return untorn_len(get()); }

    commit_info last_commit() const {
        std::error_code ec;
        const commit_info info = last_commit(ec);
        detail::check(ec.value());
        return info;
    }
    commit_info last_commit(std::error_code &ec) const noexcept {
        std::uint64_t number = 0, time = 0;
        detail::note(untorn_last_commit(get(), &number, &time), ec);
        return {number, std::chrono::nanoseconds(static_cast<std::int64_t>(time))};
    }
    std::uint64_t commit_number() const {
        const std::int64_t number = untorn_commit_number(get());
        if (number < 0) throw error(static_cast<int>(number), last_message());
        return static_cast<std::uint64_t>(number);
    }
    std::uint64_t commit_number(std::error_code &ec) const noexcept {
        const std::int64_t number = untorn_commit_number(get());
        detail::note(number < 0 ? static_cast<int>(number) : 0, ec);
        return number < 0 ? 0 : static_cast<std::uint64_t>(number);
    }

    transaction begin() {
        untorn_tx *begun = untorn_begin(get());
        if (!begun) throw error(detail::last_code(), last_message());
        return transaction(begun);
    }
    transaction begin(std::error_code &ec) noexcept {
        untorn_tx *begun = untorn_begin(get());
        detail::note(begun ? 0 : detail::last_code(), ec);
        return transaction(begun);
    }

    untorn::snapshot snapshot() {
        untorn_error why;
        return untorn::snapshot(detail::checked(untorn_snapshot(get(), &why), why));
    }
    untorn::snapshot snapshot(std::error_code &ec) noexcept {
        untorn_error why;
        return untorn::snapshot(detail::noted(untorn_snapshot(get(), &why), why, ec));
    }

    /* Commits and closes. The handle is gone, except after UNTORN_ETXOPEN. */
    void close() { detail::check(end(untorn_close)); }
    void close(std::error_code &ec) noexcept { detail::note(end(untorn_close), ec); }
    /* Commits, makes the file plain, whatever the options say, and closes as close() does. */
    void settle() { detail::check(end(untorn_settle)); }
    void settle(std::error_code &ec) noexcept { detail::note(end(untorn_settle), ec); }

    explicit operator bool() const noexcept { return get() != nullptr; }
    untorn_t *get() const noexcept { return handle_.get(); }
    untorn_t *release() noexcept { return handle_.release(); }

private:
    using handle = detail::owner<untorn_t, untorn_close>;
    int read_(std::uint64_t offset, mutable_buffer into) const noexcept {
        return untorn_read(get(), offset, into.data(), into.size());
    }
    int write_(std::uint64_t offset, const_buffer from) noexcept {
        return untorn_write(get(), offset, from.data(), from.size());
    }
    int end(int (*how)(untorn_t *)) noexcept {
        untorn_t *held = handle_.release();
        const int code = how(held);
        if (code == UNTORN_ETXOPEN) handle_ = handle(held);
        return code;
    }
    handle handle_;
};

/* Maps. */

/* A file as plain memory: loads and stores by the program's own pointers, then commit(). */
class map {
public:
    map() noexcept = default;
    /* Takes the map that untorn_map returned. */
    explicit map(void *owned) noexcept : handle_(owned) {}
    explicit map(const std::string &path, const untorn_options &how = options()) {
        untorn_error why;
        handle_ = handle(detail::checked(untorn_map(path.c_str(), &how, nullptr, &why), why));
    }
    map(const std::string &path, const untorn_options &how, std::error_code &ec) noexcept {
        untorn_error why;
        handle_ = handle(detail::noted(untorn_map(path.c_str(), &how, nullptr, &why), why, ec));
    }

    void *data() const noexcept { return handle_.get(); }
    std::uint64_t size() const noexcept { return untorn_map_len(data()); }
    /* All bytes. The view is valid until the map ends or shrinks. */
    span<std::byte> bytes() const noexcept { return {static_cast<std::byte *>(data()), size()}; }
    /* `count` values from `offset`; empty if they are not all within the map, or not aligned. */
    template <class T>
    span<T> as(std::uint64_t offset, std::size_t count) const noexcept {
        return detail::view<T>(data(), size(), offset, count);
    }

    /* Makes all stores since the last commit durable. No thread may store meanwhile. */
    void commit() { detail::check(untorn_map_commit(data())); }
    void commit(std::error_code &ec) noexcept { detail::note(untorn_map_commit(data()), ec); }
    /* The same, while other threads store. */
    void commit_beside_stores() { detail::check(untorn_map_commit_beside_stores(data())); }
    void commit_beside_stores(std::error_code &ec) noexcept {
        detail::note(untorn_map_commit_beside_stores(data()), ec);
    }
    void rollback() { detail::check(untorn_map_rollback(data())); }
    void rollback(std::error_code &ec) noexcept { detail::note(untorn_map_rollback(data()), ec); }
    void resize(std::uint64_t size) { detail::check(untorn_map_resize(data(), size)); }
    void resize(std::uint64_t size, std::error_code &ec) noexcept { detail::note(untorn_map_resize(data(), size), ec); }

    untorn::snapshot snapshot() {
        untorn_error why;
        return untorn::snapshot(detail::checked(untorn_map_snapshot(data(), &why), why));
    }
    untorn::snapshot snapshot(std::error_code &ec) noexcept {
        untorn_error why;
        return untorn::snapshot(detail::noted(untorn_map_snapshot(data(), &why), why, ec));
    }

    /* Ends the map at its last commit. */
    void close() { detail::check(untorn_unmap(handle_.release())); }
    void close(std::error_code &ec) noexcept { detail::note(untorn_unmap(handle_.release()), ec); }
    /* The same, and the file is plain whatever the options say. */
    void settle() { detail::check(untorn_map_settle(handle_.release())); }
    void settle(std::error_code &ec) noexcept { detail::note(untorn_map_settle(handle_.release()), ec); }

    explicit operator bool() const noexcept { return data() != nullptr; }
    void *release() noexcept { return handle_.release(); }

private:
    using handle = detail::owner<void, untorn_unmap>;
    handle handle_;
};

/* A file as plain memory of several processes, with one commit for the stores of all. */
class shared_map {
public:
    shared_map() noexcept = default;
    explicit shared_map(void *owned) noexcept : handle_(owned) {}
    explicit shared_map(const std::string &path, const untorn_options &how = options()) {
        untorn_error why;
        handle_ = handle(detail::checked(untorn_share(path.c_str(), &how, nullptr, &why), why));
    }
    shared_map(const std::string &path, const untorn_options &how, std::error_code &ec) noexcept {
        untorn_error why;
        handle_ = handle(detail::noted(untorn_share(path.c_str(), &how, nullptr, &why), why, ec));
    }

    void *data() const noexcept { return handle_.get(); }
    std::uint64_t size() const noexcept { return untorn_share_len(data()); }
    span<std::byte> bytes() const noexcept { return {static_cast<std::byte *>(data()), size()}; }
    template <class T>
    span<T> as(std::uint64_t offset, std::size_t count) const noexcept {
        return detail::view<T>(data(), size(), offset, count);
    }

    /* Commits the stores of all processes, and returns the number of the commit. */
    std::uint64_t commit() {
        std::uint64_t number = 0;
        detail::check(untorn_share_commit(data(), &number));
        return number;
    }
    std::uint64_t commit(std::error_code &ec) noexcept {
        std::uint64_t number = 0;
        detail::note(untorn_share_commit(data(), &number), ec);
        return number;
    }
    void rollback() { detail::check(untorn_share_rollback(data())); }
    void rollback(std::error_code &ec) noexcept { detail::note(untorn_share_rollback(data()), ec); }
    void grow(std::uint64_t size) { detail::check(untorn_share_grow(data(), size)); }
    void grow(std::uint64_t size, std::error_code &ec) noexcept { detail::note(untorn_share_grow(data(), size), ec); }
    /* Lets system calls load from and store to these bytes until the next commit. */
    void open_range(std::uint64_t offset, std::uint64_t size) {
        detail::check(untorn_share_open_range(data(), offset, size));
    }
    void open_range(std::uint64_t offset, std::uint64_t size, std::error_code &ec) noexcept {
        detail::note(untorn_share_open_range(data(), offset, size), ec);
    }
    /* Whether this process currently has the file open and serves the others. */
    bool is_serving() const {
        const int answer = untorn_share_is_serving(data());
        detail::check(answer);
        return answer == 1;
    }
    bool is_serving(std::error_code &ec) const noexcept {
        const int answer = untorn_share_is_serving(data());
        detail::note(answer, ec);
        return answer == 1;
    }
    void leave() { detail::check(untorn_share_leave(handle_.release())); }
    void leave(std::error_code &ec) noexcept { detail::note(untorn_share_leave(handle_.release()), ec); }

    explicit operator bool() const noexcept { return data() != nullptr; }
    void *release() noexcept { return handle_.release(); }

private:
    using handle = detail::owner<void, untorn_share_leave>;
    handle handle_;
};

/* Checksums and parity. */

/* Damage that a scrub found: UNTORN_DAMAGE_* and its two numbers. */
struct damage {
    std::uint32_t what;
    std::uint64_t at;
    std::uint64_t length;
};

/* How to protect a mapping: the fields of untorn_redundancy_options, all at their defaults. */
struct redundancy_options : untorn_redundancy_options {
    redundancy_options() noexcept : untorn_redundancy_options(UNTORN_REDUNDANCY_OPTIONS_INIT) {}
};

/* Protects a shared mapping of a whole file, which the program made itself and keeps until the end of this object. */
class protection {
public:
    protection() noexcept = default;
    protection(void *address, std::size_t length, const untorn_redundancy_options &how = redundancy_options()) {
        detail::check(untorn_protect(address, length, &how));
        handle_ = handle(address);
    }
    protection(void *address, std::size_t length, const untorn_redundancy_options &how, std::error_code &ec) noexcept {
        const int code = untorn_protect(address, length, &how);
        detail::note(code, ec);
        if (code == 0) handle_ = handle(address);
    }
    /* The same, with a function that a thread of the library calls for each damage. It must not throw, and must not end
     * this protection. */
    protection(void *address, std::size_t length, std::function<void(const damage &)> on_damage,
               untorn_redundancy_options how = redundancy_options())
        : on_damage_(std::make_unique<std::function<void(const damage &)>>(std::move(on_damage))) {
        how.on_damage = call;
        how.context = on_damage_.get();
        detail::check(untorn_protect(address, length, &how));
        handle_ = handle(address);
    }

    protection(protection &&) noexcept = default;
    protection &operator=(protection &&other) noexcept {
        /* The handle first: until its protection has ended, it may call the function. */
        handle_ = std::move(other.handle_);
        on_damage_ = std::move(other.on_damage_);
        return *this;
    }

    void sync() { detail::check(untorn_redundancy_sync(handle_.get())); }
    void sync(std::error_code &ec) noexcept { detail::note(untorn_redundancy_sync(handle_.get()), ec); }
    /* Sets another period in milliseconds. */
    void set_period(std::uint64_t milliseconds) {
        detail::check(untorn_redundancy_set_period(handle_.get(), milliseconds));
    }
    void set_period(std::uint64_t milliseconds, std::error_code &ec) noexcept {
        detail::note(untorn_redundancy_set_period(handle_.get(), milliseconds), ec);
    }
    /* Sets another cap on uncovered pages; UINT64_MAX for none. */
    void set_max_uncovered(std::uint64_t pages) {
        detail::check(untorn_redundancy_set_max_uncovered(handle_.get(), pages));
    }
    void set_max_uncovered(std::uint64_t pages, std::error_code &ec) noexcept {
        detail::note(untorn_redundancy_set_max_uncovered(handle_.get(), pages), ec);
    }
    untorn_coverage coverage() const {
        std::error_code ec;
        const untorn_coverage covered = coverage(ec);
        detail::check(ec.value());
        return covered;
    }
    untorn_coverage coverage(std::error_code &ec) const noexcept {
        untorn_coverage covered = UNTORN_COVERAGE_INIT;
        detail::note(untorn_redundancy_coverage(handle_.get(), &covered), ec);
        return covered;
    }
    /* Throws, or sets, UNTORN_EBADMSG if anything is damaged. */
    void scrub() { detail::check(untorn_redundancy_scrub(handle_.get(), nullptr)); }
    /* Returns the number of damaged pages of the file. */
    std::uint64_t scrub(std::error_code &ec) noexcept {
        std::uint64_t damaged = 0;
        detail::note(untorn_redundancy_scrub(handle_.get(), &damaged), ec);
        return damaged;
    }
    /* Returns the number of repaired pages of the file. */
    std::uint64_t repair() {
        std::uint64_t repaired = 0;
        detail::check(untorn_redundancy_repair(handle_.get(), &repaired));
        return repaired;
    }
    std::uint64_t repair(std::error_code &ec) noexcept {
        std::uint64_t repaired = 0;
        detail::note(untorn_redundancy_repair(handle_.get(), &repaired), ec);
        return repaired;
    }
    /* Covers all stores and ends the protection. */
    void close() { detail::check(untorn_unprotect(handle_.release())); }
    void close(std::error_code &ec) noexcept { detail::note(untorn_unprotect(handle_.release()), ec); }

    explicit operator bool() const noexcept { return handle_.get() != nullptr; }

private:
    using handle = detail::owner<void, untorn_unprotect>;
    static void call(void *context, std::uint32_t what, std::uint64_t at, std::uint64_t length) noexcept {
        (*static_cast<std::function<void(const damage &)> *>(context))({what, at, length});
    }
    /* Above the handle, so that it outlives it. */
    std::unique_ptr<std::function<void(const damage &)>> on_damage_;
    handle handle_;
};

/* Scrubs and repairs a protected file that no process has open, and returns the number of repaired pages. */
inline std::uint64_t repair(const std::string &path, std::uint32_t flags = 0) {
    std::uint64_t repaired = 0;
    detail::check(untorn_repair(path.c_str(), flags, &repaired));
    return repaired;
}
inline std::uint64_t repair(const std::string &path, std::uint32_t flags, std::error_code &ec) noexcept {
    std::uint64_t repaired = 0;
    detail::note(untorn_repair(path.c_str(), flags, &repaired), ec);
    return repaired;
}

} // namespace untorn

#endif
