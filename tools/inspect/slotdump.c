/* slotdump - what the headers of a disk tier's file say, and with --verify whether the payloads agree.
 *
 *   slotdump [--all] [--verify] FILE      FILE: incipit.blocks, or the folder that holds it
 *     --all       empty and stale slots and the removal log's records, too
 *     --verify    read each payload and compare its checksums
 *
 * Reads only, and takes no lock: of a node that runs it shows some moment's headers. Exit code 1 when
 * something is broken or unreadable. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cachesvc/store/disk_format.h"
#include "common/checksum.h"
#include "common/compiler.h"
#include "common/process.h"
#include "common/wire_cur.h"

#define FILE_NAME "incipit.blocks"
#define MAX_EXTENT_BYTES (1ull << 40)

struct dump {
    int fd;
    bool all, verify;
    uint64_t file_bytes;
    struct disk_super super;
    uint64_t n_extents, n_blocks, n_empty, n_stale, n_broken;
};

static int read_at(const struct dump *d, void *p, size_t n, uint64_t off) {
    for (size_t at = 0; at < n;) {
        ssize_t k = pread(d->fd, (uint8_t *)p + at, n - at, (off_t)(off + at));
        if (k <= 0)
            return k < 0 ? -errno : ERR_CORRUPT; /* the file is shorter than its headers say */
        at += (size_t)k;
    }
    return 0;
}

static const char *hex(const uint8_t *p, size_t n, char *ret) {
    digest_hex(p, n, ret);
    return ret;
}

static void print_time(uint64_t ms) {
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    char text[32];
    if (gmtime_r(&t, &tm) && strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm))
        printf("%s.%03uZ", text, (unsigned)(ms % 1000));
    else
        printf("%llu", (unsigned long long)ms);
}

static void print_slot(const struct disk_slot_hdr *h) {
    char a[2 * DIGEST_BYTES + 1], b[2 * DIGEST_BYTES + 1];
    printf("id %s\n    depth %u", hex(h->id.b, BLOCK_ID_BYTES, a), h->depth);
    if (h->depth)
        printf("  parent %s%s", hex(h->parent.b, BLOCK_ID_BYTES, b),
               h->flags & DISK_SLOT_FOREIGN_PARENT ? " (of another node)" : "");
    printf("\n    namespace %s\n    put %llu at ", hex(h->ns, DIGEST_BYTES, a),
           (unsigned long long)h->put_seq);
    print_time(h->put_time_ms);
    printf("  writer %s  group %llu\n", hex(h->writer, sizeof(h->writer), b),
           (unsigned long long)h->group);
    printf("    generation %llu  payload %u bytes, %u ranges  checksum %016llx\n",
           (unsigned long long)h->generation, h->payload_len, h->n_ranges,
           (unsigned long long)h->checksum);
    if (h->encoding != DISK_ENC_RAW)
        printf("    stored in %u bytes, encoding %u\n", h->stored_len, h->encoding);
}

/* The payload's ranges against the sums behind it, sums and id against the header. NULL: they agree. */
static const char *verify(const uint8_t *slot, const struct disk_slot_hdr *h) {
    uint64_t sums[CHECKSUM_MAX_RANGES], in_slot[CHECKSUM_MAX_RANGES];
    uint32_t sizes[CHECKSUM_MAX_RANGES], at = 0;
    if (h->encoding != DISK_ENC_RAW)
        return "an encoding that this program does not know";
    struct wire_cur c =
        wire_cur_read(slot + disk_trailer_off(h->stored_len), 12 * (size_t)h->n_ranges);
    for (uint32_t i = 0; i < h->n_ranges; i++)
        in_slot[i] = wire_cur_u64(&c);
    for (uint32_t i = 0; i < h->n_ranges; i++) {
        uint32_t end = wire_cur_u32(&c);
        if (end < at || end > h->payload_len)
            return "the ranges' ends do not rise within the payload";
        sizes[i] = end - at;
        at = end;
    }
    if (at != h->payload_len)
        return "the ranges end before the payload does";
    if (checksum_block(slot, sizes, h->n_ranges, h->id.b, sums) != h->checksum)
        return "the payload's checksum is not the header's";
    return memcmp(sums, in_slot, h->n_ranges * sizeof(*sums)) == 0
               ? NULL
               : "a range's checksum in the slot is not its bytes'";
}

static void broken(struct dump *d, uint64_t off, const char *why) {
    d->n_broken++;
    printf("  at %llu: BROKEN: %s\n", (unsigned long long)off, why);
}

/* One entry of an extent's table; buf holds one slot. */
static int dump_slot(struct dump *d, const struct disk_extent_hdr *eh, const uint8_t *entry,
                     uint64_t entry_off, uint64_t slot_off, uint8_t *buf) {
    struct disk_slot_hdr h;
    int rv = disk_slot_decode(entry, &h);
    if (rv == ERR_NOTFOUND) {
        d->n_empty++;
        if (d->all)
            printf("  slot at %llu: empty\n", (unsigned long long)slot_off);
        return 0;
    }
    if (rv < 0) {
        broken(d, entry_off,
               rv == ERR_UNSUPPORTED ? "slot header of another version" : "slot header");
        return 0;
    }
    if (h.extent_generation != eh->generation) {
        d->n_stale++;
        if (d->all)
            printf("  slot at %llu: stale, of the extent's generation %llu\n",
                   (unsigned long long)slot_off, (unsigned long long)h.extent_generation);
        return 0;
    }
    d->n_blocks++;
    printf("  slot at %llu: ", (unsigned long long)slot_off);
    print_slot(&h);
    if (disk_slot_need(h.stored_len, h.n_ranges) > eh->slot_bytes) {
        broken(d, entry_off, "payload and trailer are longer than the slot");
        return 0;
    }
    if (!d->verify)
        return 0;
    rv = read_at(d, buf, eh->slot_bytes, slot_off);
    if (rv < 0)
        return rv;
    const char *why = verify(buf, &h);
    if (why)
        broken(d, slot_off, why);
    return 0;
}

static int dump_table(struct dump *d, const struct disk_extent_hdr *eh, uint64_t off) {
    uint64_t table_bytes =
        ((uint64_t)eh->n_slots * DISK_SLOT_HDR_BYTES + DISK_PAGE - 1) / DISK_PAGE * DISK_PAGE;
    uint64_t table_off = off + DISK_PAGE, first = table_off + table_bytes;
    if (DISK_PAGE + table_bytes + (uint64_t)eh->n_slots * eh->slot_bytes > d->super.extent_bytes) {
        broken(d, off, "the extent's table and slots are longer than the extent");
        return 0;
    }
    uint8_t *table = malloc(table_bytes + 1), *slot = malloc((size_t)eh->slot_bytes + 1);
    int rv = table && slot ? read_at(d, table, table_bytes, table_off) : ERR_NOMEM;
    for (uint32_t i = 0; rv == 0 && i < eh->n_slots; i++) {
        uint64_t at = (uint64_t)i * DISK_SLOT_HDR_BYTES;
        rv = dump_slot(d, eh, table + at, table_off + at, first + (uint64_t)i * eh->slot_bytes,
                       slot);
    }
    free(table);
    free(slot);
    return rv;
}

static int dump_extent(struct dump *d, uint64_t number, uint64_t off) {
    uint8_t page[DISK_PAGE];
    struct disk_extent_hdr eh;
    int rv = read_at(d, page, sizeof(page), off);
    if (rv < 0)
        return rv;
    rv = disk_extent_decode(page, &eh);
    if (rv == ERR_NOTFOUND)
        return 0; /* not in use yet */
    if (rv < 0) {
        broken(d, off,
               rv == ERR_UNSUPPORTED ? "extent header of another version" : "extent header");
        return 0;
    }
    d->n_extents++;
    bool ours = memcmp(eh.store_id, d->super.store_id, sizeof(eh.store_id)) == 0;
    printf("extent %llu at %llu: generation %llu, %u slots of %u bytes%s\n",
           (unsigned long long)number, (unsigned long long)off, (unsigned long long)eh.generation,
           eh.n_slots, eh.slot_bytes, ours ? "" : ", of another store: ignored");
    return ours ? dump_table(d, &eh, off) : 0;
}

static void print_removal(const struct disk_removal *r) {
    static const char *const kinds[] = {"", "all", "writer", "id", "group"};
    char ns[2 * DIGEST_BYTES + 1], key[2 * 32 + 1];
    printf("  removal %llu: %s %s of namespace %s, put ", (unsigned long long)r->seq,
           kinds[r->kind], r->kind == DISK_REMOVE_ALL ? "" : hex(r->key, sizeof(r->key), key),
           hex(r->ns, sizeof(r->ns), ns));
    print_time(r->from_ms);
    printf(" to ");
    print_time(r->before_ms);
    printf("\n");
}

static int dump_log(struct dump *d) {
    uint8_t page[DISK_PAGE];
    uint64_t n = 0;
    for (uint64_t off = 0; off < d->super.log_bytes; off += sizeof(page)) {
        int rv = read_at(d, page, sizeof(page), d->super.log_off + off);
        if (rv < 0)
            return rv;
        for (uint32_t i = 0; i < sizeof(page); i += DISK_REMOVAL_BYTES) {
            struct disk_removal r;
            rv = disk_removal_decode(page + i, &r);
            if (rv == ERR_CORRUPT)
                broken(d, d->super.log_off + off + i, "removal record");
            n += rv == 0;
            if (rv == 0 && d->all)
                print_removal(&r);
        }
    }
    printf("%llu records in the removal log, room for %llu\n", (unsigned long long)n,
           (unsigned long long)(d->super.log_bytes / DISK_REMOVAL_BYTES));
    return 0;
}

/* Either copy serves; what is broken of one is said. */
static int read_super(struct dump *d) {
    uint8_t page[DISK_PAGE];
    int rv[2];
    for (int i = 1; i >= 0; i--) { /* the first copy, when it is whole, holds */
        rv[i] = read_at(d, page, sizeof(page), (uint64_t)i * DISK_PAGE);
        if (rv[i] == 0)
            rv[i] = disk_super_decode(page, &d->super);
    }
    if (rv[0] < 0 && rv[1] < 0)
        return rv[0];
    for (int i = 0; i < 2; i++)
        if (rv[i] < 0)
            broken(d, (uint64_t)i * DISK_PAGE, "one copy of the super block");
    return 0;
}

static int dump_file(struct dump *d) {
    char id[2 * DISK_STORE_ID_BYTES + 1];
    int rv = read_super(d);
    if (rv < 0)
        return rv;
    uint64_t head = d->super.log_off + d->super.log_bytes;
    if (d->super.extent_bytes > MAX_EXTENT_BYTES || head > d->file_bytes)
        return ERR_CORRUPT;
    uint64_t n = (d->file_bytes - head) / d->super.extent_bytes;
    printf("store %s: %llu extents of %llu bytes, smallest slot %u bytes\n",
           hex(d->super.store_id, DISK_STORE_ID_BYTES, id), (unsigned long long)n,
           (unsigned long long)d->super.extent_bytes, d->super.min_slot_bytes);
    rv = dump_log(d);
    for (uint64_t i = 0; rv == 0 && i < n; i++)
        rv = dump_extent(d, i, head + i * d->super.extent_bytes);
    if (rv == 0)
        printf("%llu extents in use, %llu blocks%s, %llu empty and %llu stale slots, %llu broken\n",
               (unsigned long long)d->n_extents, (unsigned long long)d->n_blocks,
               d->verify ? " read" : "", (unsigned long long)d->n_empty,
               (unsigned long long)d->n_stale, (unsigned long long)d->n_broken);
    return rv;
}

static int open_file(struct dump *d, const char *path) {
    char inside[4096];
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        if ((size_t)snprintf(inside, sizeof(inside), "%s/" FILE_NAME, path) >= sizeof(inside))
            return -ENAMETOOLONG;
        path = inside;
    }
    d->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (d->fd < 0 || fstat(d->fd, &st) < 0)
        return -errno;
    d->file_bytes = (uint64_t)st.st_size;
    return d->file_bytes < DISK_PAGE ? ERR_CORRUPT : 0;
}

int main(int argc, char **argv) {
    process_stdio();
    struct dump d = {.fd = -1};
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0)
            d.all = true;
        else if (strcmp(argv[i], "--verify") == 0)
            d.verify = true;
        else if (argv[i][0] == '-' || path)
            path = "";
        else
            path = argv[i];
    }
    if (!path || !*path) {
        bool asked = argc == 2 && strcmp(argv[1], "--help") == 0;
        fputs("usage: slotdump [--all] [--verify] FILE\n", asked ? stdout : stderr);
        return asked ? 0 : 2;
    }
    int rv = open_file(&d, path);
    if (rv == 0)
        rv = dump_file(&d);
    if (rv < 0)
        fprintf(stderr, "slotdump: %s: %s\n", path,
                rv == ERR_UNSUPPORTED ? "a block file of another format"
                                      : "no disk tier's file, or a broken one");
    if (d.fd >= 0)
        close(d.fd);
    return rv < 0 || d.n_broken;
}
