// Files that are given to a page: chosen, or dropped, also folders of them.

const paths = new WeakMap(); // of files that were in a dropped folder
const AT_ONCE = 1 << 20; // bytes that are compared

// Returns where a file lies, as far as the page may know it.
export function pathOf(file) {
  return paths.get(file) || file.webkitRelativePath || file.name;
}

// Whether two files have the same bytes. They are compared, without a digest, which browsers give
// only to pages that they call secure. A file that is gone is like no other.
export async function areEqual(one, other) {
  if (one.size !== other.size) return false;
  try {
    for (let at = 0; at < one.size; at += AT_ONCE) {
      const parts = [one, other].map((file) => file.slice(at, at + AT_ONCE).arrayBuffer());
      const [a, b] = (await Promise.all(parts)).map((part) => new Uint8Array(part));
      for (let i = 0; i < a.length; ++i) if (a[i] !== b[i]) return false;
    }
    return true;
  } catch {
    return false;
  }
}

// Returns the files of a drop; of folders, the images.
export async function filesIn({ items }) {
  // The items are gone once the event has ended.
  const given = Array.from(items, (item) => {
    return { entry: item.webkitGetAsEntry?.(), file: item.getAsFile() };
  });
  const found = [];
  for (const { entry, file } of given) {
    // Not as arguments of one call, which has at most about a hundred thousand.
    if (entry?.isDirectory) for (const image of await imagesIn(entry)) found.push(image);
    else if (file) found.push(file);
  }
  return found;
}

// Returns the images among files. Those of kinds that the browser does not know are among them, so
// that they are said to be left out.
export function imagesOf(files) {
  const unknown = /\.(heic|heif|jxl|tiff?)$/i;
  return files.filter(({ type, name }) => type.startsWith("image/") || unknown.test(name));
}

// Returns the images of a folder, at any depth.
async function imagesIn(folder) {
  const found = [];
  for (const entry of await contentOf(folder)) {
    if (entry.isDirectory) {
      for (const image of await imagesIn(entry)) found.push(image);
      continue;
    }
    const file = await new Promise((done) => entry.file(done, () => done(null)));
    if (!file) continue; // it is gone
    paths.set(file, entry.fullPath.replace(/^\//, ""));
    found.push(file);
  }
  return imagesOf(found);
}

async function contentOf(folder) {
  const reader = folder.createReader();
  const content = [];
  for (;;) {
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) break; // browsers give a hundred at a time
    for (const entry of some) content.push(entry);
  }
  return content.sort((a, b) => (a.name < b.name ? -1 : 1));
}
