// The structure of an HDF5 file, checked before the library reads it: libhdf5 1.10 trusts sizes and addresses that a
// hostile file may make up.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kvcc {

/// Walks every structure that the library would touch when it reads the objects of the file. Throws Error(bad_input) at
/// `place`, with the object's path, for what lies beyond the file or within something else, for sizes that contradict
/// each other, for rings, for more objects, links or attributes than an artifact could have, and for what kvcc's files
/// do not hold (codebook.md, "Container"): filters, chunked, virtual or external storage, links that are not hard,
/// shared messages, element types but numbers and texts, heaps of attributes. Both ways of writing groups and headers
/// are taken, those of release 1.8 and those before. Checksums are the library's to check. Source: HDF5 File Format
/// Specification, version 3.0.
void check_hdf5_structure(std::span<const std::byte> file, const std::string& place);

}  // namespace kvcc
