// A zip archive of files that are stored as they are, which every program reads. https://pkware.cachefly.net/webdocs/APPNOTE

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});

function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

// files: [[path, text], …]. Returns the parts of a Blob.
export function zipOf(files) {
  const [parts, directory] = [[], []];
  let at = 0;
  for (const [path, text] of files) {
    const [name, data] = [path, text].map((each) => new TextEncoder().encode(each));
    // Version 2.0, names in UTF-8, stored, 1980-01-01; the checksum, both sizes, the length of the name, no extra field.
    const facts = numbers([20, 2], [0x800, 2], [0, 2], [0, 2], [0x21, 2], [crc32(data), 4], [data.length, 4], [data.length, 4],
      [name.length, 2], [0, 2]);
    directory.push(numbers([0x02014b50, 4], [20, 2]), facts, numbers([0, 2], [0, 2], [0, 2], [0, 4], [at, 4]), name);
    const head = [numbers([0x04034b50, 4]), facts, name];
    parts.push(...head, data);
    at += head.reduce((sum, part) => sum + part.length, data.length);
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = numbers([0x06054b50, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [at, 4], [0, 2]);
  return [...parts, ...directory, end];
}

// Little-endian numbers of so many bytes: [[number, bytes], …]
function numbers(...each) {
  return Uint8Array.from(each.flatMap(([number, bytes]) => Array.from({ length: bytes }, (_, i) => (number >>> (8 * i)) & 255)));
}
