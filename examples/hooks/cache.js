// A program with a cache that it can do without, and that makes garbage all the time.
//
//   node --expose-gc cache.js 200      as the first process of a container
//
// Its pod says  vscaled.io/before-shrink: 'signal: SIGUSR2'. The size of Node's old space is that of its start, so all that can
// be done is to drop what is cached and to collect it now. Whenever the file /app/grow is there, it caches so many MiB anew and
// removes the file.
const fs = require('fs');

const mebibytes = Number(process.argv[2]);
let cache = [];
let garbage;

function fill() {
  // Strings in the heap: buffers would lie outside of it.
  cache = [];
  for (let i = 0; i < mebibytes * 8; i++) cache.push(Array.from({ length: 16384 }, () => i));
}

process.on('SIGUSR2', () => {
  cache = [];
  garbage = undefined;
  global.gc();
  // The second collection gives back what the first has emptied.
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
