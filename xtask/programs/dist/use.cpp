/* A program as others write one, against an installed untorn, with the header for C++. */
#include <untorn.hpp>

#include <iostream>
#include <string_view>

int main(int argc, char **argv) {
    if (argc != 3 || std::string_view(untorn::version()) != argv[2]) return 64;
    try {
        untorn::map map(argv[1], untorn::options().create(1 << 20));
        map.as<std::uint64_t>(0, 100001)[100000] += 2;
        map.commit();
        map.close();
        untorn::file file(argv[1]);
        std::cout << "untorn " << untorn::version() << ": " << file.read_value<std::uint64_t>(800000) << '\n';
        file.close();
    } catch (const untorn::error &why) {
        std::cerr << why.what() << '\n';
        return 1;
    }
}
