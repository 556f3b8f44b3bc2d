"""Files of recommender data as people have them: another encoding, another header, events twice. Each is read as it is meant, and
what is not taken as it stands in the file is counted in the start table."""
import gzip
import pathlib
import zipfile

import pytest

from programs import text
from runs import losses, records

DATA = pathlib.Path(__file__).parent / "strange_data"
MARK = b"\xef\xbb\xbf"
SASREC = ["--maxlen", "10", "--num_epochs", "1", "--hidden_units", "8", "--num_blocks", "1", "--batch_size", "16",
          "--log_every", "1", "--status_port", "0", "--threads", "1"]
GPT2REC = ["--gpt2_config", "1x16", "--epochs", "1", "--batch_size", "64", "--embed_dim", "8", "--log_every", "1",
           "--status_port", "0", "--threads", "1"]
ONCE = 240  # lines of ratings.dat before users rate films again


@pytest.fixture
def sasrec(run, lockstep, tmp_path):
    """sasrec(path, *flags): (losses, figures of the last evaluation, output) of a run of this file."""
    def call(path, *flags):
        folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        done = run([lockstep, "run", "sasrec", "--dataset", path, "--train_dir", folder, *SASREC, *flags])
        assert done.returncode == 0, text(done)
        return losses(folder), [record for record in records(folder) if record.get("evaluation")][-1], text(done)
    return call


@pytest.fixture
def gpt2rec(run, lockstep, tmp_path):
    """The same with a folder of MovieLens; the run's folder in place of the output's place."""
    def call(path, *flags):
        folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        done = run([lockstep, "run", "gpt2rec", "--data_path", path, "--train_dir", folder, *GPT2REC, *flags])
        assert done.returncode == 0, text(done)
        figures = [record for record in records(folder) if record.get("evaluation")][-1]
        return losses(folder), figures, text(done), folder
    return call


def movielens(folder, ratings=None, movies=None):
    folder.mkdir()
    lines = (DATA / "ratings.dat").read_bytes().splitlines(keepends=True)
    (folder / "ratings.dat").write_bytes(b"".join(lines[:ONCE]) if ratings is None else ratings)
    (folder / "movies.dat").write_bytes((DATA / "movies.dat").read_bytes() if movies is None else movies)
    (folder / "users.dat").write_bytes((DATA / "users.dat").read_bytes())
    return folder


def one_line(output):
    return " ".join(output.split())


# --- sasrec


def test_events_of_one_second_are_sorted_by_their_fractions(sasrec):
    in_order = sasrec(DATA / "in_order.inter")
    shuffled = sasrec(DATA / "shuffled.inter")
    assert shuffled[0] == in_order[0]
    assert all(shuffled[1][name] == value for name, value in in_order[1].items() if "ndcg" in name or "hr@" in name)
    assert in_order[1]["full_test_ndcg@10"] == pytest.approx(0.6626, abs=5e-5)
    assert "have fractions of a second" in one_line(shuffled[2])


@pytest.mark.parametrize("name", ["time:float", "Timestamp:float", "unix_timestamp:float", "review_time:float"])
def test_a_time_column_of_another_name_orders_the_events(sasrec, tmp_path, name):
    lines = (DATA / "time.inter").read_text()
    (tmp_path / "good.inter").write_text(lines.replace("time:float", "timestamp:float", 1))
    (tmp_path / "other.inter").write_text(lines.replace("time:float", name, 1))
    good, other = sasrec(tmp_path / "good.inter"), sasrec(tmp_path / "other.inter")
    assert good[1]["full_test_ndcg@10"] == pytest.approx(0.5694, abs=5e-5)
    assert other[0] == good[0] and other[1]["full_test_ndcg@10"] == good[1]["full_test_ndcg@10"]
    assert f"column {name}" in one_line(other[2])


def test_a_file_without_times_says_so_and_names_its_columns(sasrec, tmp_path):
    (tmp_path / "none.inter").write_text((DATA / "time.inter").read_text().replace("time:float", "weight:float", 1))
    words = one_line(sasrec(tmp_path / "none.inter")[2])
    assert "none: the order of the lines counts as the order of time; the columns are user_id:token, item_id:token, " \
           "rating:float, weight:float" in words


def test_white_space_after_the_last_column_of_a_header_is_ignored(sasrec, tmp_path):
    with_space = sasrec(DATA / "header.inter")
    (tmp_path / "clean.inter").write_text((DATA / "header.inter").read_text().replace("float \n", "float\n", 1))
    assert with_space[0] == sasrec(tmp_path / "clean.inter")[0]
    assert "bad lines 0 of 240" in one_line(with_space[2]) and "(RecBole .inter)" in with_space[2]


def test_a_header_with_other_separators_is_refused_with_the_word_tabs(run, lockstep, tmp_path):
    for separator, word in ((",", "commas"), (" ", "spaces")):
        (tmp_path / "other.inter").write_text((DATA / "time.inter").read_text().replace("\t", separator))
        done = run([lockstep, "run", "sasrec", "--dataset", tmp_path / "other.inter", "--train_dir", tmp_path / "run", *SASREC])
        assert done.returncode == 3 and f"{word} between its columns; expected tabs" in text(done), text(done)


def test_a_file_written_twice_trains_and_measures_as_once(sasrec, tmp_path):
    once = (DATA / "time.inter").read_text()
    (tmp_path / "twice.inter").write_text(once + once.split("\n", 1)[1])
    expected, found = sasrec(DATA / "time.inter"), sasrec(tmp_path / "twice.inter")
    assert found[0] == expected[0] and found[1]["full_test_ndcg@10"] == expected[1]["full_test_ndcg@10"]
    assert "equal events 240 dropped" in one_line(found[2])


def test_verbose_lists_all_bad_lines(sasrec, tmp_path):
    lines = (DATA / "time.inter").read_text()
    (tmp_path / "bad.inter").write_text(lines + "".join(f"1\t2\t5\tnever{i}\n" for i in range(7)))
    flags = ["--max_bad_lines", "0.1"]
    short, verbose = (one_line(sasrec(tmp_path / "bad.inter", *flags, *more)[2]) for more in ([], ["--verbose"]))
    assert "bad lines 7 of 247: line 242, the timestamp is not a number or a date" in short
    assert "and 4 more" in short and "never6" not in short and "never6" in verbose


# --- both, from the same data


def test_movielens_is_read_by_both_as_a_folder_and_as_a_zip_archive(sasrec, gpt2rec, tmp_path):
    folder = movielens(tmp_path / "ml-1m")
    with zipfile.ZipFile(tmp_path / "small.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"ml-1m/{path.name}")
    assert sasrec(folder)[0] == sasrec(tmp_path / "small.zip")[0]
    assert gpt2rec(folder)[0] == gpt2rec(tmp_path / "small.zip")[0]


def test_movielens_csv_is_read_by_both(sasrec, gpt2rec, tmp_path):
    folder = movielens(tmp_path / "dat")
    ratings = [line.split("::") for line in (folder / "ratings.dat").read_text().splitlines()]
    movies = [line.split("::") for line in (folder / "movies.dat").read_text().splitlines()]
    csv = tmp_path / "ml-20m"
    csv.mkdir()
    (csv / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "".join(",".join(line) + "\n" for line in ratings))
    (csv / "movies.csv").write_text("movieId,title,genres\n" + "".join(f'{i},"{title}",{g}\n' for i, title, g in movies))
    assert sasrec(csv)[0] == sasrec(folder)[0]
    assert "no file describes them" in one_line(gpt2rec(csv)[2])


def test_a_compressed_file_and_one_with_a_byte_order_mark_are_read_as_they_are(sasrec, tmp_path):
    plain = (DATA / "time.inter").read_bytes()
    (tmp_path / "packed.inter.gz").write_bytes(gzip.compress(plain))
    (tmp_path / "marked.inter").write_bytes(MARK + plain.replace(b"\n", b"\r"))
    (tmp_path / "wide.inter").write_bytes(plain.decode().encode("utf-16"))
    expected = sasrec(DATA / "time.inter")[0]
    for name in ("packed.inter.gz", "marked.inter", "wide.inter"):
        assert sasrec(tmp_path / name)[0] == expected, name


@pytest.mark.parametrize("content, words", [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a Git LFS pointer"),
    (b"<!DOCTYPE html>\n<html>", "is a web page"),
])
def test_what_was_downloaded_in_place_of_the_data_is_named(run, lockstep, tmp_path, content, words):
    folder = movielens(tmp_path / "ml", ratings=content)
    for workload in (["sasrec", "--dataset", folder], ["gpt2rec", "--data_path", folder]):
        done = run([lockstep, "run", *workload, "--train_dir", tmp_path / "run", "--status_port", "0"])
        assert done.returncode == 3 and f"{folder / 'ratings.dat'} {words}" in text(done), text(done)


# --- gpt2rec


def test_byte_order_marks_in_movielens_change_nothing(gpt2rec, tmp_path):
    expected = gpt2rec(movielens(tmp_path / "clean"))[0]
    marked = movielens(tmp_path / "marked")
    for path in marked.iterdir():
        path.write_bytes(MARK + path.read_bytes())
    assert gpt2rec(marked)[0] == expected


def test_one_odd_byte_spoils_no_other_title(run, lockstep, gpt2rec, tmp_path):
    titles = ["1::Café Noir (1981)::Comedy", "2::Pokémon (1982)::Children's"]
    rest = (DATA / "movies.dat").read_bytes().splitlines()[3:]
    movies = b"\n".join([*(title.encode() for title in titles), b"3::L\x92Avventura (1983)::Drama", *rest, b""])
    _, _, output, folder = gpt2rec(movielens(tmp_path / "ml", movies=movies))
    assert "movies.dat: line 3 is not UTF-8, read as Windows-1252" in one_line(output)
    done = run([lockstep, "gpt2rec", "recommend", "--checkpoint", folder, "--user", "1", "--topk", "20", "--format", "tsv"])
    assert done.returncode == 0, text(done)
    for title in ("Café Noir (1981)", "Pokémon (1982)", "L’Avventura (1983)"):
        assert title in done.stdout


def test_a_film_that_is_rated_again_is_found_by_the_test(gpt2rec, tmp_path):
    again = movielens(tmp_path / "again", ratings=(DATA / "ratings.dat").read_bytes())
    twice = movielens(tmp_path / "twice", ratings=(movielens(tmp_path / "once") / "ratings.dat").read_bytes() * 2)
    expected = gpt2rec(tmp_path / "once", "--split_ratio", "0.6,0.1,0.3")
    for folder, repeated in ((again, 60), (twice, ONCE)):
        found = gpt2rec(folder, "--split_ratio", "0.6,0.1,0.3")
        assert found[1]["test_recall@50"] == 1.0
        assert found[0] == expected[0]
        assert f"equal ratings {repeated} ratings of a film that the user has rated before left out (user " in one_line(found[2])
