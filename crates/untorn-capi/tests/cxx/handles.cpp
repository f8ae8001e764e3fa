/* What untorn.hpp promises beyond untorn.h: ownership, views, both forms of errors. Its argument is a directory. */
#include <untorn.hpp>

#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: not true: %s; last failure: %s\n", __FILE__, __LINE__, #condition,            \
                         untorn::last_message().c_str());                                                              \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static_assert(!std::is_copy_constructible_v<untorn::file> && std::is_nothrow_move_constructible_v<untorn::file>);
static_assert(!std::is_copy_assignable_v<untorn::map> && std::is_nothrow_move_assignable_v<untorn::map>);
static_assert(!std::is_copy_constructible_v<untorn::transaction> && !std::is_copy_constructible_v<untorn::snapshot>);
static_assert(std::is_nothrow_move_constructible_v<untorn::protection> &&
              std::is_nothrow_move_constructible_v<untorn::shared_map>);
static_assert(!std::is_copy_constructible_v<untorn::commit_stream> &&
              std::is_nothrow_move_assignable_v<untorn::commit_stream>);
static_assert(std::is_convertible_v<std::vector<int> &, untorn::mutable_buffer> &&
              std::is_convertible_v<const std::vector<int> &, untorn::const_buffer> &&
              std::is_convertible_v<std::string_view, untorn::const_buffer> &&
              std::is_convertible_v<untorn::span<int>, untorn::const_buffer> &&
              std::is_convertible_v<untorn::span<int>, untorn::span<const int>> &&
              !std::is_convertible_v<untorn::span<const int>, untorn::span<int>>);

static untorn::options created(std::uint64_t bytes) { return untorn::options().create(bytes); }

static void files(const std::string &path) {
    {
        untorn::file file(path, created(1 << 20));
        CHECK(file && file.size() == 1 << 20);
        file.write(4090, std::string_view("across a page"));
        std::array<char, 13> back{};
        file.read(4090, back);
        CHECK(std::string_view(back.data(), back.size()) == "across a page");

        untorn::transaction both = file.begin();
        both.write_value(0, std::uint64_t{400});
        both.write_value(8192, std::uint64_t{600});
        both.commit();
        CHECK(!both);
        CHECK(file.read_value<std::uint64_t>(0) + file.read_value<std::uint64_t>(8192) == 1000);
        {
            untorn::transaction dropped = file.begin();
            dropped.write_value(0, std::uint64_t{1});
        }
        CHECK(file.read_value<std::uint64_t>(0) == 400);
        file.sync();

        const untorn::snapshot then = file.snapshot();
        file.write_value(0, std::uint64_t{7});
        file.sync();
        CHECK(then.read_value<std::uint64_t>(0) == 400 && then.size() == 1 << 20);
        CHECK(then.commit_number() < file.commit_number());
        const untorn::commit_info last = file.last_commit();
        CHECK(last.number == file.commit_number() && last.time.count() > 0);

        std::vector<std::uint32_t> many(100, 9);
        file.write(16384, many);
        std::vector<std::uint32_t> read(100);
        file.read(16384, read);
        CHECK(read == many);
        file.resize(1 << 21);
        CHECK(file.size() == 1 << 21);

        // An open transaction keeps the file, and the handle is still there.
        untorn::transaction open = file.begin();
        std::error_code ec;
        file.close(ec);
        CHECK(ec.value() == UNTORN_ETXOPEN && file);
        open.abort();
        untorn::file moved = std::move(file);
        CHECK(!file && moved);
        moved.write_value(0, std::uint64_t{8});
    } // closes, and so commits
    untorn::file again(path);
    CHECK(again.read_value<std::uint64_t>(0) == 8);
    again.settle();
    CHECK(!again);
}

static void failures(const std::string &path) {
    bool thrown = false;
    try {
        untorn::file missing(path + ".missing");
    } catch (const untorn::error &why) {
        thrown = why.code() == std::errc::no_such_file_or_directory && why.code().value() == UNTORN_ENOENT &&
                 std::strstr(why.what(), ".missing");
    }
    CHECK(thrown);
    std::error_code ec;
    untorn::file missing(path + ".missing", untorn::options(), ec);
    CHECK(!missing && ec == std::errc::no_such_file_or_directory && !ec.message().empty());
    CHECK(untorn::last_message().find(".missing") != std::string::npos);

    untorn::file file(path, created(4096));
    char byte = 1;
    file.write(4096, {&byte, 1}, ec);
    CHECK(ec == std::errc::bad_address && ec.category() == untorn::category());
    file.write(4095, {&byte, 1}, ec);
    CHECK(!ec);
    thrown = false;
    try {
        file.read(4096, {&byte, 1});
    } catch (const std::system_error &why) {
        thrown = why.code() == std::errc::bad_address;
    }
    CHECK(thrown);
    // An object without a handle fails as the C function with NULL does.
    untorn::file none;
    none.sync(ec);
    CHECK(ec == std::errc::invalid_argument);
    CHECK(!none.begin(ec) && ec == std::errc::invalid_argument);
    CHECK(none.commit_number(ec) == 0 && ec);
    untorn::map nothing;
    nothing.commit(ec);
    CHECK(ec == std::errc::invalid_argument && nothing.size() == 0 && nothing.bytes().empty());
}

static void commits(const std::string &path) {
    using std::chrono::milliseconds;
    untorn::options options = created(1 << 16);
    options.commit_log = 1 << 20;
    untorn::file file(path, options);
    file.write_value(8, std::uint64_t{1});
    file.sync();
    const std::uint64_t first = file.commit_number();
    file.write_value(16, std::uint64_t{2});
    file.sync();

    untorn::commit found;
    untorn::commit_stream stream(path, first);
    CHECK(stream && stream.next(found) && found.previous == first && found.number == file.commit_number());
    CHECK(found.size == 1 << 16 && found.shortest == 1 << 16 && found.time.count() > 0);
    bool seen = false;
    for (const untorn_change &change : found.changes) {
        if (change.offset > 16 || change.offset + change.len < 24) continue;
        std::uint64_t value;
        std::memcpy(&value, static_cast<const char *>(change.bytes) + (16 - change.offset), sizeof value);
        seen = value == 2;
    }
    CHECK(seen);
    CHECK(!stream.next(found, milliseconds(1)));
    std::error_code ec;
    stream.acknowledge(first, ec);
    CHECK(ec == std::errc::invalid_argument);
    CHECK(!untorn::commit_stream(path, first + 1000, ec) && ec == std::errc::invalid_argument);

    // The next stream of a consumer goes on where the last one acknowledged.
    const std::uint64_t start = first - 1;
    untorn::commit_stream indexer = untorn::commit_stream::consumer(path, "indexer", &start);
    CHECK(indexer.next(found) && found.number == first);
    indexer.acknowledge(found.number);
    CHECK(!untorn::commit_stream::consumer(path, "indexer", nullptr, ec));
    CHECK(ec == std::errc::device_or_resource_busy);
    indexer.close();
    CHECK(!indexer);
    indexer = untorn::commit_stream::consumer(path, "indexer");
    CHECK(indexer.next(found) && found.previous == first);
    indexer = untorn::commit_stream();
    untorn::forget_consumer(path, "indexer");
    untorn::forget_consumer(path, "indexer", ec);
    CHECK(ec == std::errc::no_such_file_or_directory);
    untorn::commit_stream none;
    CHECK(!none.next(found, milliseconds(0), ec) && ec == std::errc::invalid_argument);
}

static void maps(const std::string &path) {
    untorn::map map(path, created(1 << 20));
    CHECK(map && map.size() == 1 << 20 && map.bytes().size() == 1 << 20);
    auto counts = map.as<std::uint64_t>(8192, 512);
    CHECK(counts.size() == 512);
    CHECK(map.as<std::uint64_t>(1, 1).empty() && map.as<std::uint64_t>(1 << 20, 1).empty());
    CHECK(map.as<std::uint64_t>((1 << 20) - 8, 2).empty() && map.as<std::uint64_t>(0, SIZE_MAX).empty());
#if __cplusplus >= 202002L
    std::span<std::uint64_t> standard = counts;
    CHECK(standard.size() == 512 && standard.data() == counts.data());
#endif
    for (std::uint64_t &count : counts) count = 3;
    map.commit();
    counts[0] = 4;
    CHECK(map.snapshot().read_value<std::uint64_t>(8192) == 3);
    map.rollback();
    CHECK(counts[0] == 3);
    counts[1] = 5;
    map.commit_beside_stores();
    map.resize(1 << 21);
    CHECK(map.size() == 1 << 21);
    map.commit();
    counts[2] = 6;
    map = untorn::map(); // ends it, without a commit
    untorn::map after(path);
    CHECK(after.as<std::uint64_t>(8192, 1)[0] == 3 && after.as<std::uint64_t>(8200, 2)[0] == 5);
    CHECK(after.as<std::uint64_t>(8208, 1)[0] == 3);
    after.settle();
}

/* Whether the machine has what sharing and protection need; else it says so and they are left out. */
static bool is_refused(const std::error_code &ec) {
    return ec == std::errc::operation_not_permitted || ec == std::errc::function_not_supported;
}

static bool shared_maps(const std::string &path) {
    std::error_code ec;
    untorn::shared_map map(path, created(1 << 20), ec);
    if (is_refused(ec)) return false;
    CHECK(!ec && map && map.size() == 1 << 20 && map.is_serving());
    map.as<std::uint64_t>(0, 1)[0] = 11;
    const std::uint64_t first = map.commit();
    map.as<std::uint64_t>(0, 1)[0] = 12;
    map.rollback();
    CHECK(map.as<std::uint64_t>(0, 1)[0] == 11);
    map.grow(1 << 21);
    map.open_range(4096, 4096);
    map.as<std::uint64_t>(8, 1)[0] = 13;
    CHECK(map.commit() > first && map.size() == 1 << 21);
    map.leave();
    CHECK(!map);
    return true;
}

static bool protections(const std::string &path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, 1 << 16) == 0);
    void *memory = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    std::error_code ec;
    untorn::protection tried(memory, 1 << 16, untorn::redundancy_options(), ec);
    if (ec && untorn::last_message().find("userfaultfd") != std::string::npos) return false;
    CHECK(!ec && tried);
    std::memset(memory, 1, 1 << 16);
    tried.sync();
    CHECK(tried.coverage().uncovered == 0 && tried.coverage().pages == 16 && tried.scrub(ec) == 0 && !ec);
    tried.close();
    int damages = 0;
    {
        untorn::protection with(memory, 1 << 16, [&](const untorn::damage &) { damages++; });
        untorn::protection moved = std::move(with);
        CHECK(!with && moved && moved.repair() == 0);
    }
    CHECK(munmap(memory, 1 << 16) == 0 && close(fd) == 0);
    CHECK(untorn::repair(path) == 0 && damages == 0);
    untorn::repair(path + ".missing", 0, ec);
    CHECK(ec);
    return true;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const std::string directory = std::string(argv[1]) + "/";
    CHECK(std::string(untorn::version()) == untorn_version());
    files(directory + "file");
    failures(directory + "failures");
    commits(directory + "commits");
    maps(directory + "map");
    const bool shared = shared_maps(directory + "shared");
    if (!protections(directory + "protected") || !shared) std::puts("skipped: userfaultfd is not available");
}
