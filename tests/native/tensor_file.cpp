// The file layout of tensors as a C++ program of somebody else reads and writes it: from the description alone, with
// nothing of the core in it.
//
//     u32 magic 0xFCCFE2E2 | u32 ndims | u32 dtype | i32 dims[ndims] | raw C-order data      (little-endian)
//
//     tensor_file write FOLDER    writes float32.bin, float16.bin, int32.bin, uint8.bin and scalar.bin
//     tensor_file read FILE       prints: dtype | dims | number of bytes of data | the data in hexadecimal
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

enum class DataType : std::uint32_t { Float32 = 0, Float16 = 1, Int32 = 2, UInt8 = 3 };

constexpr std::uint32_t kMagic = 0xFCCFE2E2;

template <typename T>
bool write(const std::string &path, DataType type, const std::vector<std::int32_t> &dims, const std::vector<T> &data) {
    std::ofstream file(path, std::ios::binary);
    const std::uint32_t head[3] = {kMagic, static_cast<std::uint32_t>(dims.size()), static_cast<std::uint32_t>(type)};
    file.write(reinterpret_cast<const char *>(head), sizeof head);
    file.write(reinterpret_cast<const char *>(dims.data()), static_cast<std::streamsize>(dims.size() * 4));
    file.write(reinterpret_cast<const char *>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(T)));
    return static_cast<bool>(file);
}

template <typename T> std::vector<T> counted(std::size_t count, double scale, double start) {
    std::vector<T> data(count);
    for (std::size_t i = 0; i < count; i++)
        data[i] = static_cast<T>(start + scale * static_cast<double>(i));
    return data;
}

int write_all(const std::string &folder) {
    bool good = write(folder + "/float32.bin", DataType::Float32, {2, 3, 4}, counted<float>(24, 0.25, -3));
    // float16 as a C++ program without a half type holds it: its bits. 0x3C00 is 1.0, and each next one 1/1024 more.
    good = write(folder + "/float16.bin", DataType::Float16, {5}, counted<std::uint16_t>(5, 1, 0x3C00)) && good;
    good = write(folder + "/int32.bin", DataType::Int32, {3, 0, 2}, std::vector<std::int32_t>{}) && good;
    good = write(folder + "/uint8.bin", DataType::UInt8, {16, 16}, counted<std::uint8_t>(256, 1, 0)) && good;
    good = write(folder + "/scalar.bin", DataType::Int32, {}, std::vector<std::int32_t>{-123456789}) && good;
    return good ? 0 : 1;
}

int read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::uint32_t head[3];
    if (!file.read(reinterpret_cast<char *>(head), sizeof head) || head[0] != kMagic) {
        std::cerr << path << ": not a tensor file\n";
        return 1;
    }
    std::vector<std::int32_t> dims(head[1]);
    if (!file.read(reinterpret_cast<char *>(dims.data()), static_cast<std::streamsize>(dims.size() * 4)))
        return 1;
    const std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::printf("%u |", static_cast<unsigned>(head[2]));
    for (const std::int32_t dim : dims)
        std::printf(" %d", dim);
    std::printf(" | %zu | ", data.size());
    for (const char byte : data)
        std::printf("%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    std::printf("\n");
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    const std::string verb = argc == 3 ? argv[1] : "";
    if (verb == "write")
        return write_all(argv[2]);
    if (verb == "read")
        return read(argv[2]);
    std::cerr << "tensor_file write FOLDER | read FILE\n";
    return 2;
}
