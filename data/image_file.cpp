// PNG through libpng's simplified interface, JPEG through libjpeg.
#include <halo/core/atomic_file.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/data/images.h>
#include <halo/data/transform.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include <jpeglib.h>
#include <png.h>

// The codes in jerror.h depend on the library's version, which jpeglib.h defines: it must come after.
// clang-format off
#include <jerror.h>
// clang-format on

namespace halo::data {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 28;
/// What a byte of a file holds at most: of PNG 1032 bytes (deflate's best ratio) of eight one-bit pixels; of JPEG eight
/// blocks of 64 pixels with one bit each, and headers.
constexpr int64_t kPngPixelsAByte = 1032 * 8, kJpegPixelsAByte = 1024;

/// Interleaved RGB rows to [3, H, W].
Tensor planes(const std::vector<uint8_t>& rgb, int64_t height, int64_t width) {
  return view::dense(view::permute(from_vector(rgb, {height, width, 3}), {2, 0, 1}));
}

void check_pixels(const std::string& path, int64_t height, int64_t width) {
  if (height < 1 || width < 1 || height > kMostPixels / width) {
    fail<FileError>(path, ": image expected 1 to 2^28 pixels, got ", height, " x ", width);
  }
}

/// What the file says of its size, before anything of that size is allocated.
void check_pixels_fit_file(const std::string& path, int64_t height, int64_t width, int64_t pixels_a_byte) {
  check_pixels(path, height, width);
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  if (height * width / pixels_a_byte > bytes) {
    fail<FileError>(path, ": an image of ", height, " x ", width, " pixels expected a file of more than ", bytes,
                    " bytes");
  }
}

Tensor read_png(const std::string& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_file(&image, path.c_str()) == 0) {
    fail<FileError>(path, ": not a readable PNG: ", image.message);
  }
  const std::unique_ptr<png_image, void (*)(png_image*)> owner(&image, png_image_free);
  check_pixels_fit_file(path, image.height, image.width, kPngPixelsAByte);
  image.format = PNG_FORMAT_RGB;
  std::vector<uint8_t> rgb(PNG_IMAGE_SIZE(image));
  const png_color black{0, 0, 0};  // behind transparent pixels
  if (png_image_finish_read(&image, &black, rgb.data(), 0, nullptr) == 0) {
    fail<FileError>(path, ": not a readable PNG: ", image.message);
  }
  return planes(rgb, image.height, image.width);
}

/// A JPEG being read. libjpeg reports errors by a callback that must not return: it jumps back into the function that
/// set `jump`, across which no object with a destructor lives.
struct Jpeg {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf jump{};
  char message[JMSG_LENGTH_MAX] = "";

  explicit Jpeg(std::FILE* file) {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = [](j_common_ptr common) {
      auto* self = static_cast<Jpeg*>(common->client_data);
      (*common->err->format_message)(common, self->message);
      std::longjmp(self->jump, 1);
    };
    // The decoder would go on with grey where the data end, and tell the standard error output alone.
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF) (*common->err->error_exit)(common);
    };
    if (setjmp(jump) != 0) return;
    jpeg_create_decompress(&info);
    jpeg_stdio_src(&info, file);
  }
  ~Jpeg() { jpeg_destroy_decompress(&info); }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;

  /// False, with a message, where the file is no JPEG.
  bool read_header() {
    if (setjmp(jump) != 0) return false;
    jpeg_read_header(&info, TRUE);
    return true;
  }

  /// Fills `rgb` with height x width interleaved pixels.
  bool read_pixels(uint8_t* rgb) {
    if (setjmp(jump) != 0) return false;
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      JSAMPROW row = rgb + std::size_t{3} * info.output_width * info.output_scanline;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
    return true;
  }
};

Tensor read_jpeg(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) fail<FileError>(path, ": cannot be opened for reading");
  Jpeg jpeg(file.get());
  if (!jpeg.read_header()) fail<FileError>(path, ": not a readable JPEG: ", jpeg.message);
  const int64_t height = jpeg.info.image_height, width = jpeg.info.image_width;
  check_pixels_fit_file(path, height, width, kJpegPixelsAByte);
  std::vector<uint8_t> rgb(static_cast<std::size_t>(3 * height * width));
  if (!jpeg.read_pixels(rgb.data())) fail<FileError>(path, ": not a readable JPEG: ", jpeg.message);
  return planes(rgb, height, width);
}

}  // namespace

Tensor read_image(const std::string& path) {
  std::array<uint8_t, 4> magic{};
  {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
    if (file == nullptr) fail<FileError>(path, ": cannot be opened for reading");
    if (std::fread(magic.data(), 1, magic.size(), file.get()) != magic.size())
      fail<FileError>(path, ": too short for an image");
  }
  if (magic[0] == 0x89 && magic[1] == 'P') return read_png(path);
  if (magic[0] == 0xFF && magic[1] == 0xD8) return read_jpeg(path);
  fail<FileError>(path, ": expected a PNG or JPEG image");
}

ImageSet read_image_folder(const std::string& path, int64_t height, int64_t width) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) fail<FileError>(path, ": expected a folder with one sub-folder a class");
  ImageSet set;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_directory()) set.class_names.push_back(entry.path().filename().string());
  }
  std::sort(set.class_names.begin(), set.class_names.end());
  if (set.class_names.empty()) fail<FileError>(path, ": expected a folder with one sub-folder a class");
  std::vector<std::pair<fs::path, int64_t>> files;
  for (std::size_t label = 0; label < set.class_names.size(); ++label) {
    for (const auto& entry : fs::directory_iterator(fs::path(path) / set.class_names[label])) {
      if (entry.is_regular_file()) files.emplace_back(entry.path(), static_cast<int64_t>(label));
    }
  }
  std::sort(files.begin(), files.end());
  const auto n = static_cast<int64_t>(files.size());
  set.images = empty({n, 3, height, width}, {.dtype = DType::UInt8});
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    const auto& [file, label] = files[static_cast<std::size_t>(i)];
    const Tensor image = resize(view::unsqueeze(read_image(file.string()), 0), height, width);
    copy(view::select(image, 0, 0), view::select(set.images, 0, i));
    labels.push_back(label);
  }
  set.labels = from_vector(labels, {n});
  return set;
}

void write_png(const std::string& path, const Tensor& image) {
  if (image.dtype() != DType::UInt8 || image.rank() != 3 || (image.size(0) != 1 && image.size(0) != 3)) {
    fail("write_png: image expected uint8 [1 or 3, H, W], got ", image.describe());
  }
  check_pixels(path, image.size(1), image.size(2));
  const Tensor rows = view::dense(view::permute(image, {1, 2, 0}));
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.height = static_cast<png_uint_32>(image.size(1));
  png.width = static_cast<png_uint_32>(image.size(2));
  png.format = image.size(0) == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t bytes = 0;
  if (png_image_write_to_memory(&png, nullptr, &bytes, 0, rows.data(), 0, nullptr) == 0) {
    fail<FileError>(path, ": cannot be written: ", png.message);
  }
  std::vector<uint8_t> encoded(bytes);
  if (png_image_write_to_memory(&png, encoded.data(), &bytes, 0, rows.data(), 0, nullptr) == 0) {
    fail<FileError>(path, ": cannot be written: ", png.message);
  }
  AtomicFile file(path);
  file.write(encoded.data(), bytes);
  file.commit();
}

}  // namespace halo::data
