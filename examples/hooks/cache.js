// A program with a cache that it can drop, which produces garbage all the time.
//
//   node --expose-gc cache.js 200      as the first process of a container
//
// Its container has the variable VSCALED_BEFORE_SHRINK: 'signal: SIGUSR2'. Node cannot change the maximum size of its old space
// after the start, so the program drops its cache and runs the garbage collector. For tests, when the file /app/grow exists, the
// program fills its cache again and removes the file.
const fs = require('fs');

const mebibytes = Number(process.argv[2]);
let cache = [];
let garbage;

function fill() {
  // Strings are in the heap; buffers would be outside of it.
  cache = [];
  for (let i = 0; i < mebibytes * 8; i++) cache.push(Array.from({ length: 16384 }, () => i));
}

process.on('SIGUSR2', () => {
  cache = [];
  garbage = undefined;
  global.gc();
  // The second collection returns the pages that the first one has emptied.
  global.gc();
});

fill();
fs.writeFileSync('/app/ready', '');
setInterval(() => {
  garbage = new Array(32768).fill(Math.random());
  if (fs.existsSync('/app/grow')) {
    fill();
    fs.unlinkSync('/app/grow');
  }
}, 10);
