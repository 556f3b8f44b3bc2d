"""Files of recommender data as people have them: another encoding, another header, events twice. Each is read as it is meant, and
what is not taken as it stands in the file is counted in the start table."""
import zipfile

import pytest

from programs import text
from runs import losses, records

# Each of 30 users rates 8 of 20 films: user, film, rating, time.
RATINGS = [(user, (7 * user + place) % 20 + 1, 4, 978_300_000 + 100 * user + place)
           for user in range(1, 31) for place in (0, 1, 3, 4, 7, 9, 12, 16)]
INTER = "user_id:token\titem_id:token\trating:float\ttime:float\n" + "".join(f"{u}\t{f}\t{r}\t{t}\n" for u, f, r, t in RATINGS)
SASREC = ["--maxlen", "10", "--num_epochs", "1", "--hidden_units", "8", "--num_blocks", "1", "--batch_size", "16",
          "--log_every", "1", "--status_port", "0", "--threads", "1"]
GPT2REC = ["--gpt2_config", "1x16", "--epochs", "1", "--batch_size", "64", "--embed_dim", "8", "--log_every", "1",
           "--status_port", "0", "--threads", "1"]


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


def movielens(folder, ratings=None):
    folder.mkdir()
    (folder / "ratings.dat").write_bytes(lines_of(RATINGS) if ratings is None else ratings)
    (folder / "movies.dat").write_text("".join(f"{film}::Film {film} (1981)::Comedy\n" for film in range(1, 21)))
    (folder / "users.dat").write_text("".join(f"{user}::F::25::{user % 21}::0\n" for user in range(1, 31)))
    return folder


def lines_of(ratings):
    return "".join("::".join(map(str, rating)) + "\n" for rating in ratings).encode()


def one_line(output):
    return " ".join(output.split())


# --- sasrec


def test_the_start_table_says_what_the_times_are(sasrec, tmp_path):
    (tmp_path / "none.inter").write_text(INTER.replace("time:float", "weight:float"))
    assert "none: the order of the lines counts as the order of time; the columns are user_id:token, item_id:token, " \
           "rating:float, weight:float" in one_line(sasrec(tmp_path / "none.inter")[2])
    header, *lines = INTER.splitlines()
    (tmp_path / "fractions.inter").write_text("\n".join([header, *(f"{line}.5" for line in lines)]))
    assert "column time:float; 240 have fractions of a second" in one_line(sasrec(tmp_path / "fractions.inter")[2])


def test_a_file_written_twice_trains_and_measures_as_once(sasrec, tmp_path):
    (tmp_path / "once.inter").write_text(INTER)
    (tmp_path / "twice.inter").write_text(INTER + INTER.split("\n", 1)[1])
    expected, found = sasrec(tmp_path / "once.inter"), sasrec(tmp_path / "twice.inter")
    assert found[0] == expected[0] and found[1]["full_test_ndcg@10"] == expected[1]["full_test_ndcg@10"]
    assert "equal events 240 dropped" in one_line(found[2])


def test_verbose_lists_all_bad_lines(sasrec, tmp_path):
    (tmp_path / "bad.inter").write_text(INTER + "".join(f"1\t2\t5\tnever{i}\n" for i in range(7)))
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


def test_a_film_that_is_rated_again_is_found_by_the_test(gpt2rec, tmp_path):
    movielens(tmp_path / "once")
    again = movielens(tmp_path / "again", lines_of([*RATINGS, *((*pair, 1, 979_000_000) for *pair, _, _ in RATINGS[:60])]))
    twice = movielens(tmp_path / "twice", lines_of([*RATINGS, *RATINGS]))
    expected = gpt2rec(tmp_path / "once", "--split_ratio", "0.6,0.1,0.3")
    for folder, repeated in ((again, 60), (twice, 240)):
        found = gpt2rec(folder, "--split_ratio", "0.6,0.1,0.3")
        assert found[1]["test_recall@50"] == 1.0
        assert found[0] == expected[0]
        assert f"equal ratings {repeated} ratings of a film that the user has rated before left out (user " in one_line(found[2])
